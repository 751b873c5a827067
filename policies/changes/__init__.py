"""Changes of knobs that belong together (degrees of parallelism, recompute, switches), and how to recognise a
change."""
