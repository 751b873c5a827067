"""Reading traces: from a profiler's file to a partition of every step and the wall that costs most.

Nothing here runs training or needs torch: a trace can be diagnosed on a laptop.
"""
