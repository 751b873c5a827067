"""Gated delta net layers: Megatron's own spec with local modules in it, and its kernels in plain torch.

The spec only takes modules of Transformer Engine, and the class cannot be built without flash-linear-attention, whose
kernels need a GPU. Megatron-Core has the delta rule in torch as well, for its deterministic mode. Source:
models/gpt/experimental_attention_variant_module_specs.py and ssm/gated_delta_net.py of Megatron-Core 0.16.1 to 0.18.2,
where it is a module, and 0.19.2, where it is a package.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
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
    plain = copy.copy(config)  # from 0.19 on the specs of ordinary layers refuse a variant
    plain.experimental_attention_variant = None
    layers = get_gpt_decoder_layer_specs(plain, use_transformer_engine=False)
    mixed = [
        _with_mixer(layer, _local_mixer()) if linear else layer
        for layer, linear in zip(layers, variants.get_linear_attention_pattern(config), strict=True)
    ]
    block = get_gpt_decoder_block_spec(plain, use_transformer_engine=False, vp_stage=vp_stage)
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
    from megatron.core.ssm import gated_delta_net as whole

    in_torch = {
        "HAVE_FLA": True,
        "l2norm": _l2norm,
        "chunk_gated_delta_rule": whole.torch_chunk_gated_delta_rule,
        "causal_conv1d": _causal_conv1d,  # from 0.18 on
        "causal_conv1d_fn": None,  # before: None makes Megatron-Core convolve in torch
    }
    for module in modules():
        for name, form in in_torch.items():
            yield mock.patch.object(module, name, form, create=True)


def modules() -> list[Any]:
    """Returns Megatron-Core's modules that bind the kernels: one, and from 0.19 on a package and two of its own."""
    name = "megatron.core.ssm.gated_delta_net"
    whole = importlib.import_module(name)
    own = ("common", "gdn") if hasattr(whole, "__path__") else ()
    return [whole, *(importlib.import_module(f"{name}.{module}") for module in own)]


def _l2norm(tensor: Any) -> Any:
    """Returns the tensor divided by its L2 norm over the last dimension, as fla.modules.l2norm does."""
    return tensor * torch.rsqrt(tensor.square().sum(-1, keepdim=True) + NORM_EPSILON)


def _causal_conv1d(x: Any, weight: Any, bias: Any, activation: str, **_: Any) -> tuple[Any, None]:
    """Convolves x [b, s, d] over s with weight [d, w], as fla.modules.convolution.causal_conv1d does without a state;
    the activation is SiLU, which it calls swish as well."""
    length, width = x.size(1), weight.size(1)
    convolved = torch.nn.functional.conv1d(
        x.transpose(1, 2), weight.unsqueeze(1), bias, padding=width - 1, groups=x.size(2)
    )
    return torch.nn.functional.silu(convolved[..., :length]).transpose(1, 2), None
