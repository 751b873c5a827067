"""Layer modules that replace those of Megatron's local specs which refuse a recipe.

`WrappedTorchNorm` refuses sequence parallel, which MoE with TP needs; the local `DotProductAttention` refuses MLA and
context parallel; the norm that 0.19 puts before MLA's query projection is in Transformer Engine's layers only. Used on
CPUs, and on GPUs without Transformer Engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

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


class NormedColumnParallelLinear(torch.nn.Module):
    """A norm of the input and a column-parallel linear layer, as Transformer Engine's TELayerNormColumnParallelLinear
    has in one."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **linear: Any) -> None:
        from megatron.core.tensor_parallel import ColumnParallelLinear

        super().__init__()
        self.norm = SequenceParallelNorm(config, input_size, eps=config.layernorm_epsilon)
        self.linear = ColumnParallelLinear(input_size, output_size, config=config, **linear)

    def forward(self, tokens: Any) -> Any:
        """Maps tokens [s, b, input_size] to ([s, b, output_size / TP], bias), as the linear layer does."""
        return self.linear(self.norm(tokens))


@contextlib.contextmanager
def normed_query_projections() -> Iterator[None]:
    """Lets Megatron-Core build local layers within the block where it normalises the input of MLA's query projection,
    from 0.19 on. Source: transformer/mla_qk_norm_config.py."""
    try:
        resolver = importlib.import_module("megatron.core.transformer.mla_qk_norm_config")
    except ImportError:  # before 0.19
        yield
        return
    from megatron.core.models.backends import LocalSpecProvider

    class LocalWithNorms(LocalSpecProvider):
        def column_parallel_layer_norm_linear(self) -> Any:
            return NormedColumnParallelLinear

    with mock.patch.object(resolver, "get_backend", return_value=LocalWithNorms()):
        yield


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


def local_layers(spec: Any, modules: LocalModules, *, compresses_queries: bool) -> Any:
    """Returns the spec (ModuleSpec, submodules dataclass or list) with the modules replaced, in place.

    Without compressed queries (MLA's `q_lora_rank`) nothing builds their norm, and 0.19 refuses a spec that has it.
    """
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.multi_latent_attention import MLASelfAttentionSubmodules
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
            if isinstance(node, MLASelfAttentionSubmodules) and not compresses_queries:
                node.q_layernorm = IdentityOp
        return node

    return walk(spec)
