"""Measures the tuning policy: compares it and simpler searches, on simulated clusters, with the best known recipe of
each.

python -m benchmarks.policy
"""
