"""Gated delta net layers: Megatron's own spec with local modules in it, and its kernels in plain torch.

The spec only takes modules of Transformer Engine, and the class cannot be built without flash-linear-attention, whose
kernels need a GPU. Megatron-Core has the delta rule in torch as well, for its deterministic mode. Source:
models/gpt/experimental_attention_variant_module_specs.py and ssm/gated_delta_net.py of Megatron-Core 0.16.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from trainer.engines.megatron.layers import SequenceParallelNorm

NORM_EPSILON = 1e-6  # epsilon of the norms of queries and keys: the default of fla.modules.l2norm


def delta_net_block(config: Any, vp_stage: int | None, *, transformer_engine: bool) -> Any:
    """Returns the spec of the decoder layers of one stage: gated delta net, and attention in every N-th layer."""
    from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_decoder_layer_specs

    if transformer_engine:
        return variants.get_transformer_block_with_experimental_attention_variant_spec(config, vp_stage)
    layers = get_gpt_decoder_layer_specs(config, use_transformer_engine=False)
    mixed = [
        _with_mixer(layer, _local_mixer()) if linear else layer
        for layer, linear in zip(layers, variants.get_linear_attention_pattern(config), strict=True)
    ]
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=vp_stage)
    block.layer_specs = [mixed[layer] for layer in _layers_of(config, vp_stage)]
    return block


def _local_mixer() -> Any:
    """Returns the spec of the mixer without its input norm, which stays the layer's own."""
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec

    parts = GatedDeltaNetSubmodules(
        in_proj=ColumnParallelLinear, out_norm=SequenceParallelNorm, out_proj=RowParallelLinear
    )
    return ModuleSpec(module=GatedDeltaNet, submodules=parts)


def _with_mixer(layer: Any, mixer: Any) -> Any:
    submodules = dataclasses.replace(layer.submodules, self_attention=mixer)
    return dataclasses.replace(layer, submodules=submodules)


def _layers_of(config: Any, vp_stage: int | None) -> list[int]:
    """Returns the decoder layers of this rank's stage, counted from 0."""
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    layout = config.pipeline_model_parallel_layout
    if layout is not None:
        return list(layout.get_layer_id_list(layer_type=LayerType.decoder, vp_stage=vp_stage))
    first = get_transformer_layer_offset(config, vp_stage=vp_stage)
    return list(range(first, first + get_num_layers_to_build(config, vp_stage=vp_stage)))


def patches() -> Iterator[Any]:
    """Yields patches that replace the GPU kernels for convolution, delta rule and L2 norm by their forms in torch."""
    from megatron.core.ssm import gated_delta_net as module

    yield mock.patch.object(module, "HAVE_FLA", True)
    yield mock.patch.object(module, "l2norm", _l2norm, create=True)
    yield mock.patch.object(module, "chunk_gated_delta_rule", module.torch_chunk_gated_delta_rule)
    if module.causal_conv1d_fn is not None:
        yield mock.patch.object(module, "causal_conv1d_fn", None)


def _l2norm(tensor: Any) -> Any:
    """Returns the tensor divided by its L2 norm over the last dimension, as fla.modules.l2norm does."""
    return tensor * torch.rsqrt(tensor.square().sum(-1, keepdim=True) + NORM_EPSILON)
