"""Finds the changes of a tuned recipe that production does not need, by running bursts without some of them."""
