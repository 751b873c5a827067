"""How good a tuning policy is: it and simpler searches on simulated clusters, against the best known of each.

python -m benchmarks.policy
"""
