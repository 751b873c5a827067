"""What `check` says: the rules a recipe breaks, and what `run` and `estimate` refuse before they start."""
