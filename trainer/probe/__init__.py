"""Probe of the nodes before the first burst: links between nodes, clocks, the folder they share, and
micro-benchmarks."""
