"""Compares all studies of a folder: what was tuned, the gain, the walls, the cost."""
