"""Dispatch by DeepEP or HybridEP, with the functions that Megatron-Core's flex dispatcher calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainer.model.layer import expert_input
from trainer.recipe import Recipe


def flex_dispatch(recipe: Recipe, group: Any, device: str) -> Callable[[], object] | None:
    """Returns a function that dispatches a layer's micro batch over the group, at an even load; None if the library is
    not installed. Not run on a GPU yet."""
    from megatron.core.transformer.moe import fused_a2a

    model, size = recipe.architecture, group.size()
    experts, topk = model.num_moe_experts or 1, model.moe_router_topk
    count = recipe.training.micro_batch_size * recipe.training.seq_length
    tokens = torch.randn(count, expert_input(model), device=device).to(torch.bfloat16)
    chosen = (torch.arange(count, device=device)[:, None] * topk + torch.arange(topk, device=device)) % experts
    if recipe.knob("moe_flex_dispatcher_backend") == "hybridep":
        dispatch = getattr(fused_a2a, "hybrid_ep_dispatch", None)
        if dispatch is None:
            return None
        where = torch.zeros(count, experts, dtype=torch.bool, device=device).scatter_(1, chosen, True)
        chances = where.float() / topk
        return lambda: dispatch(tokens, where, chances, group, experts // size)
    fused = getattr(fused_a2a, "fused_dispatch", None)
    if fused is None:
        return None
    shares = torch.full((count, topk), 1 / topk, device=device)
    return lambda: fused(tokens, chosen, shares, experts, group)
