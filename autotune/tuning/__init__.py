"""Runs a tuning study: the loop, the bench that runs its bursts, the judge, and the journal that records every step."""
