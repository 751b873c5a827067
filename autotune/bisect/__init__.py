"""Finds which differences between two recipes make the second one slower, or make it fail: `moe-autotune bisect`."""
