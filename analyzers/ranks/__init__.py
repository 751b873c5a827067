"""Several ranks of one job: aligned clocks, matched collectives, waiting and its causes, and the average step."""
