"""Probe of the nodes before the first burst: links between nodes, clocks, and the folder they share."""
