"""Shared output: quantities and names in words, bars, tables, and the frame of every HTML page."""
