"""Compares the arguments of an imported command with those that its recipe and the remaining words of the command
give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.frameworks.megatron_lm.arguments import read_arguments
from trainer.frameworks.megatron_lm.settle import settled

# Names that set one thing in two ways: only the settled values are compared
SPELLINGS = {
    "recompute_activations",
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
    "enable_cuda_graph",
    "external_cuda_graph",
    "use_rotary_position_embeddings",
    "encoder_num_layers",
    "encoder_seq_length",
    "moe_router_padding_for_fp8",
    "hybrid_override_pattern",
    "grad_reduce_in_bf16",
    "moe_enable_deepep",
    "moe_flex_dispatcher_num_sms",
}


def differences(
    before: Sequence[str], after: Sequence[str], *, world_size: int | None
) -> Mapping[str, tuple[Any, Any]]:
    """Returns, by Megatron-LM's names, the values that differ between two argument lists, after its own validation."""
    left = settled(read_arguments(before).values, world_size=world_size)
    right = settled(read_arguments(after).values, world_size=world_size)
    return {
        name: (value, right[name])
        for name, value in left.items()
        if name not in SPELLINGS and _plain(value) != _plain(right[name])
    }


def _plain(value: Any) -> Any:
    """Returns a value for comparison: lists as tuples."""
    return tuple(value) if isinstance(value, list) else value
