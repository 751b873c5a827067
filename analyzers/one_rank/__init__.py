"""One rank: from its timeline to sets of time by cause, the breakdown of its steps, and the digest."""
