"""Layer modules that replace those of Megatron's local specs which refuse a recipe.

`WrappedTorchNorm` refuses sequence parallel, which MoE with TP needs; the local `DotProductAttention` refuses MLA and
context parallel. Used on CPUs, and on GPUs without Transformer Engine.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch


class SequenceParallelNorm:
    """The norm of the configuration, with parameters marked as sequence parallel, so that `finalize_model_grads`
    reduces their gradients."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        kind = torch.nn.LayerNorm if config.normalization == "LayerNorm" else torch.nn.RMSNorm
        norm = kind(hidden_size, eps=eps, dtype=config.params_dtype)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm


class SdpaCoreAttention(torch.nn.Module):
    """Causal core attention by torch's SDPA. With context parallel, K and V are gathered over the cp group."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.scale = softmax_scale
        self.cp_group = pg_collection.cp if config.context_parallel_size > 1 else None
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        """Maps query and key [s, b, h, d], value [s, b, h, dv] to [s, b, h·dv]."""
        mask = None
        if self.cp_group is not None:
            mask = _causal_mask_of_zigzag(query.size(0), self.cp_group)
            key, value = _gather_sequence(key, self.cp_group), _gather_sequence(value, self.cp_group)
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        value_dim = value.size(-1)
        if value_dim != query.size(-1):  # MLA: SDPA requires equal head sizes
            value = torch.nn.functional.pad(value, (0, query.size(-1) - value_dim))
        out = torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=query.size(1) != key.size(1),
        )
        out = out[..., :value_dim].permute(2, 0, 1, 3)
        return out.reshape(out.size(0), out.size(1), -1)


def _gather_sequence(tensor: Any, group: Any) -> Any:
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

    return gather_from_sequence_parallel_region(tensor, tensor_parallel_output_grad=True, group=group)


def zigzag_positions(rank: int, length: int, world: int) -> Any:
    """Returns the sequence positions of context-parallel `rank` of `world`, int64[length]: chunks r and 2·world−1−r,
    which makes causal work even. `length` is the number of positions per rank."""
    half = length // 2
    return torch.cat([torch.arange(half) + rank * half, torch.arange(half) + (2 * world - 1 - rank) * half])


def _causal_mask_of_zigzag(length: int, group: Any) -> Any:
    world, rank = group.size(), group.rank()
    keys = torch.cat([zigzag_positions(r, length, world) for r in range(world)])
    mask = zigzag_positions(rank, length, world)[:, None] >= keys[None, :]
    return mask.to(torch.cuda.current_device())


@dataclass(frozen=True, kw_only=True)
class LocalModules:
    """Replacements for modules of Megatron's local specs. `down_projection` is for MLA; None keeps the spec's."""

    core_attention: type
    down_projection: type | None = None


TRAINABLE = LocalModules(core_attention=SdpaCoreAttention)
_DOWN_PROJECTIONS = ("linear_q_down_proj", "linear_kv_down_proj")


def local_layers(spec: Any, modules: LocalModules = TRAINABLE) -> Any:
    """Returns the spec (ModuleSpec, submodules dataclass or list) with the modules replaced, in place."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    replacements = {WrappedTorchNorm: SequenceParallelNorm, DotProductAttention: modules.core_attention}

    def walk(node: Any) -> Any:
        if isinstance(node, type):
            return replacements.get(node, node)
        if isinstance(node, (list, tuple)):
            return type(node)(map(walk, node))
        if isinstance(node, ModuleSpec):
            node.module, node.submodules = walk(node.module), walk(node.submodules)
        elif dataclasses.is_dataclass(node):
            for field in dataclasses.fields(node):
                whole = modules.down_projection if field.name in _DOWN_PROJECTIONS else None
                setattr(node, field.name, whole or walk(getattr(node, field.name)))
        return node

    return walk(spec)
