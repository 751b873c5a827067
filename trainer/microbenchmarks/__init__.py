"""The micro-benchmarks of a cluster, by group: planned for a recipe, and as rows with what was measured."""
