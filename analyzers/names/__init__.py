"""Meanings of the names of kernels, operators, process groups, ranges and host calls: tables whose rows have their
sources."""
