"""Measures the tuning policy: it and simpler searches on simulated clusters, compared with the best known recipe of
each.

python -m benchmarks.policy
"""
