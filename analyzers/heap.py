"""Memory that was let go, given back to the system, so that the peak is what is in use and not what once was.

glibc keeps freed memory that lies below pieces still in use, arrays of up to 32 MB with it; of a trace of 2 GB that
was 100 to 150 MB at the peak of its diagnosis.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  # malloc.h
LARGE_BYTES = 2 << 20  # two pieces of a trace: what is larger is an array of a long trace


def map_large_arrays() -> None:
    """From now on large arrays go back as soon as they are let go. Does nothing without glibc, as does give_back."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def give_back() -> None:
    """Give back what was let go so far."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
