"""Finds the changes of a tuned recipe that production does not need: what taking each out costs, by bursts."""
