"""What a recipe asks of the process itself: threads, cores, garbage collection. Undone after the burst."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

import torch

from trainer.recipe import Recipe


@contextlib.contextmanager
def process_settings(recipe: Recipe) -> Iterator[None]:
    """For the time of the block: `threads_per_rank`, `cpu_affinity` and `manual_gc`."""
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(recipe.knob("threads_per_rank"))
    if recipe.knob("cpu_affinity") == "spread":
        _pin(_own_share(sorted(cores)))
    if recipe.knob("manual_gc"):
        gc.collect()
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _pin(cores)
        torch.set_num_threads(threads)


def cores_per_rank() -> float:
    """Cores this node lets us use, shared evenly by its ranks."""
    return len(os.sched_getaffinity(0)) / int(os.environ["LOCAL_WORLD_SIZE"])


def _own_share(cores: list[int]) -> set[int]:
    """This rank's equal part of the node's cores, in order; all of them where there are fewer cores than ranks."""
    local, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    each = len(cores) // ranks
    return set(cores[local * each : (local + 1) * each]) if each else set(cores)


def _pin(cores: set[int]) -> None:
    """Affinity belongs to a thread: every one this process has already started is moved."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.sched_setaffinity(int(thread), cores)
