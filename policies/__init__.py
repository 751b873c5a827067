"""Decides what to try next: the fixes, the surrogate of a cluster, candidates, the search, bisection and ablation."""
