"""A probe of the cluster: micro-benchmarks before the first burst, or by themselves (`moe-autotune probe`)."""
