"""Launch scripts in general: argument lists, the words that start ranks, containers, jobs, variables, login shells.

Read by `moe-autotune import` and by recordings, written by exports and bursts. No framework: text and recipes only.
"""
