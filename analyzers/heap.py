"""Returns freed memory to the system, so that peak memory is what is in use.

glibc keeps freed memory below blocks still in use, even arrays of up to 32 MB. For a trace of 2 GB that added 100 to
150 MB to the peak of its diagnosis.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  # malloc.h
LARGE_BYTES = 2 << 20  # eight pieces of a trace (CHUNK_BYTES): anything larger is an array of a long trace


def map_large_arrays() -> None:
    """Makes glibc allocate large arrays by mmap, so that freeing one returns its memory at once.

    Does nothing without glibc, like `give_back`.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


def give_back() -> None:
    """Returns memory that this process has freed to the system."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
