"""Counts the bytes of live tensors as the CUDA caching allocator would, for fake tensors, which have no memory."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_DEVICE = torch.ops.prim.device.default  # C++ asks fake tensors for their device: 60 % of calls, which create no tensor
BLOCK = 512  # bytes the caching allocator rounds to (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)


class LiveBytes(TorchDispatchMode):
    """Counts each storage once, at its current size, from the operation that creates it until it is freed.

    `live` and `peak` are bytes; `peak_phase` is the last phase entered before the peak.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.phase = self.peak_phase = ""
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return args[0].fake_device
        out = func(*args, **(kwargs or {}))
        for leaf in tree_iter(out):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return out

    def _see(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            weakref.finalize(storage, self._forget, key)
            self._resize(key, storage.nbytes())

    def _resize(self, key: int, size: int) -> None:
        size = -(-size // BLOCK) * BLOCK
        self.live += size - self._sizes[key]
        self._sizes[key] = size
        if self.live > self.peak:
            self.peak, self.peak_phase = self.live, self.phase

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Counts live bytes within the block.

        Also follows resizes, by which recompute frees tensors and which dispatch does not see.
        """
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in self._sizes:
                self._resize(storage._cdata, size)
            return result

        with self, mock.patch.object(torch.UntypedStorage, "resize_", resized):
            yield
