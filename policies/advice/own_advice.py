"""Advice that is not a fix which the tuner tries, since no knob of a recipe sets it.

Where the device waits for data, the advice is to use more loader workers. Where the model has no transformer layers,
whose modules the fix `cuda_graphs` captures, it is to capture the whole step as a CUDA graph.
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

GRAPHED_STEP = 'torch.compile(mode="reduce-overhead")'
STEP_GRAPHS = OwnAdvice(
    name="step_graphs",
    title="CUDA graphs of a step",
    page=Page(
        summary="CUDA graphs of a step: replay the launches of forward and backward instead of issuing them.",
        what=(
            f"`{GRAPHED_STEP}`, which captures graphs as it compiles; by hand `torch.cuda.make_graphed_callables` or "
            "`torch.cuda.CUDAGraph`. Megatron's scopes are modules of transformer layers; this model has none."
        ),
        shows="the device idle, waiting for launches (host wall), in a model without transformer layers.",
        costs="static shapes and addresses of inputs, memory that stays reserved for graphs, compiling at the start.",
        not_when="shapes change from step to step, or the host reads results in the middle of a step.",
        source="PyTorch documentation: torch.compile, CUDA semantics (CUDA graphs).",
    ),
)
