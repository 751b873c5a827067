"""The output of `diagnose`: the wall of a job's traces, the steps it is based on, and where their time went."""
