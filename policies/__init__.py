"""Deciding what to try next: phases, one file a fix, the memory gate, and the search."""
