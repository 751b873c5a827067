"""Several ranks of one job: clocks aligned, collectives matched, waiting and its causes, and the average step."""
