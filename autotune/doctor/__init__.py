"""The output of `doctor`: what this machine has for tuning, and what is missing."""
