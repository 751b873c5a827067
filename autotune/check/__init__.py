"""The output of `check`: the rules a recipe violates, and what `run` and `estimate` refuse before they start."""
