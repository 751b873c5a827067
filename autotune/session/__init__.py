"""One run of the tuner from its first line to its notification, however it ends."""
