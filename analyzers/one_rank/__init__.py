"""One rank: from its timeline to sets of time by cause, the partition of its steps, and its digest."""
