"""Every layout and setting a cluster could have, which are legal and fit, and which are fastest by estimate."""
