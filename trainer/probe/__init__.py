"""Probe of the nodes before the first burst: links between them, clocks, the folder that they share."""
