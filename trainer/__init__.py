"""Running bursts: what a recipe is, what is legal, who trains it and what came of it.

Nothing here reads a trace (that is `analyzers`): the two meet in a burst's run folder on disk.
"""
