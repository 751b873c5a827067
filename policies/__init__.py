"""Decides what to try next: phases, one file per fix, the memory gate, and the search."""
