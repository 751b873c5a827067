"""What `doctor` says: what this machine has, and what is missing for what."""
