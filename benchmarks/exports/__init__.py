"""Exports held against the real trainers."""
