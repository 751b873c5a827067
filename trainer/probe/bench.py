"""Test bench of one rank: its device, process groups over any ranks, and timed repeats of a piece of work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trainer.recipe import Recipe

if TYPE_CHECKING:
    from trainer.engines.megatron.device import Device

REPEATS = 5
EACH_S = 0.4  # seconds for the repeats of one row: fewer repeats if one takes long
MIN_REPEATS = 2
US = 1e6
CYCLES = 10_000_000  # length of the kernel by which a GPU's clock is read
LAUNCH_MARGIN, SLACK_US = 1.5, 1000.0  # a kernel is in the way for so many times the launches' duration, and longer


class UnavailableError(Exception):
    """Raised if software that a row measures is not installed, or device or number of ranks do not suffice."""


class Bench:
    """The recipe, device and process groups with which one rank measures the rows of a probe.

    All ranks create process groups in the same order, once each.
    """

    def __init__(self, recipe: Recipe, device: Device, *, rank: int, world: int) -> None:
        import torch
        import torch.distributed as dist

        self.recipe, self.device, self.rank, self.world = recipe, device, rank, world
        self.torch: Any = torch
        self.dist: Any = dist
        self._groups: dict[tuple[int, ...], Any] = {}

    @property
    def on_cpu(self) -> bool:
        return self.device.name == "cpu"

    @property
    def dtype(self) -> Any:
        """Returns the dtype of tensors that are not quantized: BF16, or FP32 for an fp32 recipe on CPUs."""
        narrow = self.recipe.training.precision != "fp32" or not self.on_cpu
        return self.torch.bfloat16 if narrow else self.torch.float32

    def tensor(self, *shape: int, dtype: Any = None, grad: bool = False) -> Any:
        """Returns a tensor of small random numbers on the device, whose gradient is dropped once it is computed."""
        made = self.torch.randn(*shape, device=self.device.name, dtype=self.torch.float32) * 0.02
        made = made.to(dtype or self.dtype).requires_grad_(grad)
        if grad:  # else each repeat would add its gradient to that of the one before: one more kernel per tensor
            made.register_post_accumulate_grad_hook(_drop_gradient)
        return made

    def repeats(
        self, work: Callable[[], object], *, together: Sequence[int] = (), on_device: bool = False
    ) -> list[float]:
        """Returns the µs of each repeat, after one warm-up, by the host's clock from start to synchronization.

        `on_device` takes a GPU's clock and launches all kernels before the first one starts, since the host launches
        small kernels more slowly than a GPU runs them. If ranks work `together`, each repeat starts after a barrier,
        and all run as many repeats as the slowest has time for.
        """
        self._timed(work, together)
        behind_us = self._launching_us(work, together) if on_device and not self.on_cpu else None
        first = self._timed(work, together, behind_us)
        longest = (self.most(first) if together else first) + (behind_us or 0.0)
        count = int(max(MIN_REPEATS, min(REPEATS, EACH_S * US / max(longest, 1.0))))
        return [first, *(self._timed(work, together, behind_us) for _ in range(count - 1))]

    def _timed(self, work: Callable[[], object], together: Sequence[int], behind_us: float | None = None) -> float:
        """Returns the µs of the work; by CUDA events and behind a kernel of `behind_us` if that is given."""
        if together:
            self.dist.barrier()
        self.device.synchronize()
        if behind_us is not None:
            return self.device_us(work, busy_cycles=int(behind_us * self._cycles_per_us))
        started = time.perf_counter()
        work()
        self.device.synchronize()
        return (time.perf_counter() - started) * US

    def device_us(self, work: Callable[[], object], *, busy_cycles: int = 0) -> float:
        """Returns the µs of the work by CUDA events, behind a kernel of so many cycles."""
        cuda = self.torch.cuda
        started, ended = (cuda.Event(enable_timing=True) for _ in range(2))
        if busy_cycles:
            cuda._sleep(busy_cycles)
        started.record()
        work()
        ended.record()
        self.device.synchronize()
        return float(started.elapsed_time(ended)) * 1e-3 * US

    def _launching_us(self, work: Callable[[], object], together: Sequence[int]) -> float:
        """Returns more than the µs that the host needs to launch the work, the most of all ranks that work together."""
        started = time.perf_counter()
        work()
        found = (time.perf_counter() - started) * US
        self.device.synchronize()
        return LAUNCH_MARGIN * (self.most(found) if together else found) + SLACK_US

    @cached_property
    def _cycles_per_us(self) -> float:
        return CYCLES / self.device_us(lambda: self.torch.cuda._sleep(CYCLES))

    def most(self, value: float) -> float:
        """Returns the maximum of `value` over all ranks."""
        found = self.torch.tensor([value], dtype=self.torch.float64, device=self.device.name)
        self.dist.all_reduce(found, op=self.dist.ReduceOp.MAX)
        return float(found.item())

    def out_of_time(self, deadline: float) -> bool:
        """Returns whether the deadline, by the monotonic clock, is over for any rank."""
        return bool(self.most(float(time.monotonic() > deadline)))

    def ranks(self, count: int, stride: int) -> tuple[int, ...] | None:
        """Returns the ranks of this rank's group of `count`, `stride` apart; None if it is in no whole group."""
        block = count * stride
        if block > self.world:
            return None
        base = self.rank // block * block + self.rank % stride
        found = tuple(base + stride * each for each in range(count))
        return found if found[-1] < self.world else None

    def group(self, count: int, stride: int) -> Any:
        """Returns this rank's process group of `count` ranks, `stride` apart; None if it is in no whole group.

        Collective: every rank must call it. Raises UnavailableError if the world is too small.
        """
        block = count * stride
        if block > self.world:
            raise UnavailableError(f"{block} ranks are not here: {self.world} are")
        own = None
        for start in range(0, self.world - block + 1, block):
            for offset in range(stride):
                members = tuple(start + offset + stride * each for each in range(count))
                if members not in self._groups:
                    self._groups[members] = self.dist.new_group(list(members))
                if self.rank in members:
                    own = self._groups[members]
        return own


def _drop_gradient(tensor: Any) -> None:
    tensor.grad = None
