"""The device that a rank trains on, a GPU or a CPU: its memory, enforced limit and clock.

On a CPU the limit is the operating system's: a soft RLIMIT_DATA above what the rank holds before the model is built, so
that running out of memory is a real failed allocation. The peak is the maximum resident set above the same point.
Source of both: proc(5), getrlimit(2).
"""

from __future__ import annotations

import contextlib
import gc
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from trainer.engines.megatron import heap

GIB = 2**30


class Device(Protocol):
    """A device for training.

    `held` starts counting the memory of one burst and enforces its limit, `peak_gib` returns the peak; `outside_gib` is
    the memory on the device that the count leaves out.
    """

    name: str  # torch's name of the device type
    backend: str  # backend of torch.distributed

    def synchronize(self) -> None: ...

    def held(self, limit_gib: float | None) -> contextlib.AbstractContextManager[None]: ...

    def peak_gib(self) -> float: ...

    def outside_gib(self) -> float | None: ...

    def attainable_tflops(self) -> float | None: ...


def open_device(local_rank: int) -> Device:
    import torch

    return GpuDevice(local_rank) if torch.cuda.is_available() else CpuDevice()


class CpuDevice:
    name = "cpu"
    backend = "gloo"

    def __init__(self) -> None:
        self._baseline_kib = 0
        self._attainable_tflops: dict[int, float] = {}  # by number of threads
        heap.keep_freed_memory()

    def synchronize(self) -> None:
        """Does nothing: only collectives are asynchronous on a CPU, and those are waited for."""

    @contextlib.contextmanager
    def held(self, limit_gib: float | None) -> Iterator[None]:
        gc.collect()
        with heap.holes_filled():
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
            self._baseline_kib = _status_kib("VmRSS")
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            if limit_gib is not None:
                limit = _status_kib("VmData") * 1024 + int(limit_gib * GIB)
                resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def peak_gib(self) -> float:
        return max(0, _status_kib("VmHWM") - self._baseline_kib) * 1024 / GIB

    def outside_gib(self) -> None:
        """Returns None: memory outside the count is not known on a CPU."""

    def attainable_tflops(self) -> float:
        """Returns the TFLOP/s of a large float32 GEMM with this rank's threads: the rate that GEMMs can attain here.

        It is measured once per number of threads.
        """
        import torch

        threads = torch.get_num_threads()
        if threads not in self._attainable_tflops:
            self._attainable_tflops[threads] = self._gemm_tflops()
        return self._attainable_tflops[threads]

    def _gemm_tflops(self) -> float:
        import torch

        size, best_s = 512, float("inf")
        a, b = torch.randn(size, size), torch.randn(size, size)
        for _ in range(24):
            start = time.perf_counter()
            torch.mm(a, b)
            best_s = min(best_s, time.perf_counter() - start)
        return 2 * size**3 / best_s / 1e12


class GpuDevice:
    backend = "nccl"

    def __init__(self, local_rank: int) -> None:
        import torch

        if local_rank >= torch.cuda.device_count():
            raise ValueError(f"local rank {local_rank} has no GPU: this machine has {torch.cuda.device_count()}")
        torch.cuda.set_device(local_rank)
        self.name = f"cuda:{local_rank}"

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    @contextlib.contextmanager
    def held(self, limit_gib: float | None) -> Iterator[None]:
        """Starts counting memory for the block.

        A limit below the device's own is enforced by the caching allocator, which gets the limit minus the memory
        outside it at that time.
        """
        import torch

        gc.unfreeze()  # as in a run, whose collections search what it has imported as well
        gc.collect()  # the model of the previous burst is in reference cycles
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        total = torch.cuda.get_device_properties(self.name).total_memory
        if limit_gib is not None and limit_gib * GIB < total:
            allowed_gib = max(limit_gib - (self.outside_gib() or 0.0), 0.0)
            torch.cuda.set_per_process_memory_fraction(allowed_gib * GIB / total)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def peak_gib(self) -> float:
        """Returns the peak of reserved (not allocated) memory, GiB: other processes cannot use what the
        allocator holds."""
        import torch

        return torch.cuda.max_memory_reserved() / GIB

    def outside_gib(self) -> float | None:
        """Returns the memory that is neither free nor the allocator's, GiB: context, NCCL, the dispatcher's buffers,
        and other processes. None if the GPU does not answer."""
        import torch

        try:
            free, total = torch.cuda.mem_get_info()
        except RuntimeError:  # an earlier kernel's error, which this call only repeats and must not hide
            return None
        return max(total - free - torch.cuda.memory_reserved(), 0) / GIB

    def attainable_tflops(self) -> None:
        """Returns None: on a GPU, the peak of the hardware table is used."""


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise KeyError(field)
