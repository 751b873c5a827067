"""Micro-benchmarks of a cluster, by group: planned for a recipe, and as rows with the measured figures."""
