"""Meanings of names: kernels, operators, process groups, ranges, host calls. Tables, each row with its source."""
