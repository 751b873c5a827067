"""Returns freed memory to the system, so that the peak is what is in use.

glibc keeps freed memory below pieces still in use, arrays of up to 32 MB included; for a trace of 2 GB that was 100
to 150 MB at the peak of its diagnosis.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  # malloc.h
LARGE_BYTES = 2 << 20  # two pieces of a trace: anything larger is an array of a long trace


def map_large_arrays() -> None:
    """Makes glibc return large arrays as soon as they are freed; does nothing without glibc, as does give_back."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def give_back() -> None:
    """Returns the memory freed so far to the system."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
