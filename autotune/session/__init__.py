"""One run of the tuner, from its first line of output to its notification, however it ends."""
