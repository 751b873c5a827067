"""The fused kernels that no knob of a recipe names: as Megatron-LM's command line sets them, off without Transformer
Engine.

Production has them on unless switched off, and they change memory as well as time: without the fused activation an
expert keeps twice its input. Sources: Megatron-LM 0.16.1, arguments.py:966, :995, :1318-1337, :2034-2087.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any
from unittest import mock

from trainer.frameworks.megatron_lm.required import unfused_rotation
from trainer.recipe import Recipe
from trainer.recipe.architecture import Architecture

FUSIONS = (
    "gradient_accumulation_fusion",
    "masked_softmax_fusion",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "apply_rope_fusion",
    "persist_layer_norm",
)


def fusions(recipe: Recipe, *, transformer_engine: bool) -> dict[str, bool]:
    """Returns fields of TransformerConfig.

    Without Transformer Engine all are off: the kernels are its own, or belong to local layers, which production does
    not run.
    """
    if not transformer_engine:
        return dict.fromkeys(FUSIONS, False)
    model = recipe.architecture
    return dict.fromkeys(FUSIONS, True) | {
        "bias_activation_fusion": _fuses_activation(model),
        "apply_rope_fusion": model.position_embedding_type == "rope" and not unfused_rotation(recipe),
    }


def _fuses_activation(model: Architecture) -> bool:
    """Returns whether the activation is fused: SwiGLU without `glu_linear_offset`, gated or plain GeLU and quick GeLU
    with a bias; others have no fused kernel (transformer_config.py:1485)."""
    if model.activation == "silu":
        return model.gated_linear_unit and model.glu_linear_offset == 0.0
    return model.add_bias_linear and model.activation in ("gelu", "quick_gelu")


def has_apex() -> bool:
    """Returns whether apex's kernel for accumulating weight gradients is installed, which Megatron's own linear layers
    use."""
    return importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None


@contextlib.contextmanager
def accumulating_without_apex(config: Any) -> Iterator[list[Any]]:
    """Lets models that are built in the block, and appended to the list, use fused gradient accumulation without apex.

    Transformer Engine's layers do it by themselves. Megatron's own (the output layer) refuse to be built; here a second
    kernel adds their gradient. Source: tensor_parallel/layers.py:924.
    """
    built: list[Any] = []
    if not config.gradient_accumulation_fusion or has_apex():
        yield built
        return
    from megatron.core.tensor_parallel import layers

    with mock.patch.object(layers, "_grad_accum_fusion_available", True):
        yield built
    own = (layers.ColumnParallelLinear, layers.RowParallelLinear)
    for module in (module for model in built for module in model.modules()):
        if isinstance(module, own):
            module.gradient_accumulation_fusion = False
