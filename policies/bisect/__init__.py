"""Finds which of the differences between two recipes make the second one slower, or make it fail."""
