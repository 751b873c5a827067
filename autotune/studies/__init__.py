"""Compares all studies of a folder: recipe, gain, walls and cost."""
