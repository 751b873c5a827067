"""What `diagnose` says: the wall of a job's traces, the steps it rests on, and where in them the time went."""
