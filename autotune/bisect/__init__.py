"""`moe-autotune bisect`: which differences between two recipes make the second one slower, or make it fail."""
