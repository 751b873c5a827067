"""The output of `estimate`: memory and step time of a recipe by part, without a burst."""
