"""Several ranks of one job: clocks aligned, collectives matched, who waits for whom, and the average step."""
