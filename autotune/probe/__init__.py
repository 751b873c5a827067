"""Probes a cluster with micro-benchmarks: before the first burst of a study, or alone (`moe-autotune probe`)."""
