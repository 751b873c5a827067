"""What `run` does: the loop, the bench it measures on, the judge, and the journal that keeps every step of it."""
