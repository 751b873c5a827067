"""Writes a twin of a cluster: a machine file with what a study or a probe learned about it."""
