"""Runs bursts: recipes and their rules, estimates, engines, launchers, and the outcomes of bursts.

Nothing here reads a trace (`analyzers` does): the two packages meet in a burst's run folder on disk.
"""
