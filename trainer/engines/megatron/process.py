"""Applies a recipe's settings of the process: threads, cores, garbage collection. They are undone after the burst."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

import torch

from trainer.engines.megatron.affinity import cores_by_numa_node, numa_nodes_of_gpus, own_share, pin
from trainer.recipe import Recipe


@contextlib.contextmanager
def process_settings(recipe: Recipe) -> Iterator[None]:
    """Applies `threads_per_rank`, `cpu_affinity` and `manual_gc` within the block."""
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(recipe.knob("threads_per_rank"))
    if recipe.knob("cpu_affinity") == "spread":
        ranks = int(os.environ["LOCAL_WORLD_SIZE"])
        pin(own_share(int(os.environ["LOCAL_RANK"]), numa_nodes_of_gpus(ranks), cores, cores_by_numa_node()))
    if recipe.knob("manual_gc"):
        gc.unfreeze()  # a run's own collections search what it has imported as well
        gc.collect()
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
        pin(cores)
        torch.set_num_threads(threads)


def cores_per_rank() -> float:
    """Returns the cores that this process may use, divided by the ranks of the node."""
    return len(os.sched_getaffinity(0)) / int(os.environ["LOCAL_WORLD_SIZE"])
