"""Knob changes that belong together: degrees of parallelism, recompute, switches; and recognising a change."""
