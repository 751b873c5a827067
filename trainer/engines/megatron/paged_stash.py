"""Runs a step again where experts got more tokens than their static buffers hold, as Megatron-LM's training loop does.

Source: Megatron-LM 0.19.2, training.py:3624. Not run on a GPU: HybridEP and NCCL EP alone have such buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.engines.megatron.model import TrainableModel
from trainer.recipe import Recipe

CAPACITY = "moe_expert_rank_capacity_factor"


def rerun_when_full(recipe: Recipe, model: TrainableModel, schedule: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the schedule; with a capacity of a rank's experts, Megatron-Core's runner around it (0.18 and later),
    which wraps the graph of a whole iteration, not the other way round."""
    if recipe.knob(CAPACITY) is None:
        return schedule
    from megatron.core.transformer.moe.paged_stash import PagedStashRunner

    copies = recipe.knob("reuse_grad_buf_for_mxfp8_param_ag") and recipe.knob("overlap_param_gather")
    runner: Callable[..., Any] = PagedStashRunner(model.config, copies, model.chunks, model.optimizer, schedule)
    return runner
