"""The tuning run: the loop, the bench it measures on, the judge, and the journal that records every step."""
