"""Runs the tuner once, from its first line of output to its notification, whatever ends it."""
