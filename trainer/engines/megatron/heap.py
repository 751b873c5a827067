"""Makes the glibc heap of a rank behave the same in every burst of the process.

Memory that an earlier burst freed inside the heap could be reused without the operating system noticing, so that a
limit would not hold; `holes_filled` blocks that space. Source: mallopt(3), malloc_trim(3), sbrk(2). With another C
library all of this does nothing, and peaks of later bursts are less exact.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_HEAP_CHUNK = 32 * 2**20  # glibc refuses a higher mmap threshold
_NEVER_TRIM = 2**30
_HOLE_SIZES = (16 * 2**20, 4 * 2**20, 2**20, 2**18, 2**16)  # bytes, tried from the largest


def _glibc() -> Any | None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):  # musl
        return None
    libc.sbrk.restype = ctypes.c_void_p
    libc.sbrk.argtypes = [ctypes.c_ssize_t]
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    return libc


def keep_freed_memory() -> None:
    """Keeps freed tensors in the heap, as a GPU's caching allocator does.

    Otherwise every step pays page faults for its activations again (30 to 40 % of CPU time were seen).
    """
    if libc := _glibc():
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_HEAP_CHUNK)
        libc.mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM)


@contextlib.contextmanager
def holes_filled() -> Iterator[None]:
    """Returns free memory to the system, then occupies the free space left inside the heap without touching it, so that
    everything the block allocates is new to the operating system."""
    libc = _glibc()
    if libc is None:
        yield
        return
    libc.malloc_trim(0)
    ballast = [chunk for size in _HOLE_SIZES for chunk in _chunks_inside_heap(libc, size)]
    try:
        yield
    finally:
        for chunk in ballast:
            libc.free(chunk)


def _chunks_inside_heap(libc: Any, size: int) -> Iterator[int]:
    """Yields chunks of `size` bytes, as long as the heap has room for them without growing."""
    end = libc.sbrk(0)
    while True:
        chunk = libc.malloc(size)
        if not chunk:
            return
        if libc.sbrk(0) > end or chunk > end:  # beyond the end: a mapping, where the heap could not grow
            libc.free(chunk)
            libc.malloc_trim(0)
            return
        yield chunk
