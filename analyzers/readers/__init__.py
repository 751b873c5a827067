"""Readers of trace files, one module a format: timelines of the ranks, whatever recorded them."""

from analyzers.readers.formats import format_of, read

__all__ = ["format_of", "read"]
