"""Readers of trace files, one module per format; each turns a file into the timelines of its ranks."""

from analyzers.readers.formats import format_of, read

__all__ = ["format_of", "read"]
