"""Time of a step by part, its error interval, and the constants of the estimate."""
