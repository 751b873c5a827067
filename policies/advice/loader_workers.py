"""Advice to use more data-loader workers where the device waits for data.

No knob of a recipe sets it, so it is not a fix that the tuner tries.
"""

from __future__ import annotations

from dataclasses import dataclass

from policies.changes.fix import Page

DATA_LOADING = "data_loading"  # the host activity, and the part of the host wall
WORKERS_FLAG = "--num-workers"  # Megatron-LM's; torch's DataLoader calls it num_workers


@dataclass(frozen=True, kw_only=True)
class OwnAdvice:
    """Advice that is not a fix: its name, its title and its page."""

    name: str
    title: str
    page: Page


LOADER_WORKERS = OwnAdvice(
    name="loader_workers",
    title="more loader workers",
    page=Page(
        summary="More loader workers: prepare the next batches in other processes while the device computes.",
        what=(
            "Megatron-LM's `--num-workers`; of torch's `DataLoader` `num_workers`, with `pin_memory`, "
            "`persistent_workers` and a `prefetch_factor` of 2 or more."
        ),
        shows="the device waits while the host is in the data loader's `__next__` or in `get_batch`.",
        costs="host memory and a core for each worker.",
        not_when=(
            "the workers are already more than the cores of a rank, or the storage is the limit: then cache or "
            "preprocess the data."
        ),
        source="PyTorch documentation, torch.utils.data (multi-process data loading); its performance tuning guide.",
    ),
)
