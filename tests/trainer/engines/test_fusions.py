"""Checks that fused kernels are on exactly where Megatron-LM's command line has them on a GPU; runs none of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.engines.gpu_recipes import on_gpus
from tests.trainer.engines.megatron_verdict import transformer_engine_played
from trainer.recipe import Recipe
from trainer.recipe.models import presets

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.megatron


def fused(recipe: Recipe) -> dict[str, bool]:
    from trainer.engines.megatron.fusions import fusions

    return fusions(recipe, transformer_engine=True)


def test_without_transformer_engine_nothing_is_fused() -> None:
    from trainer.engines.megatron.fusions import FUSIONS, fusions

    assert fusions(on_gpus(), transformer_engine=False) == dict.fromkeys(FUSIONS, False)


def test_with_transformer_engine_a_plain_model_has_every_fusion() -> None:
    assert set(fused(on_gpus()).values()) == {True}


@pytest.mark.parametrize(
    ("model", "is_fused"),
    [
        ({"gated_linear_unit": False}, False),  # GeLU without a bias: the launcher switches it off
        ({"gated_linear_unit": False, "add_bias_linear": True}, True),
        ({"activation_func": "quick_gelu", "add_bias_linear": True}, True),
        ({"activation_func": "squared_relu", "gated_linear_unit": False, "add_bias_linear": True}, False),
    ],
)
def test_an_activation_is_fused_where_there_is_a_kernel(model: dict[str, Any], is_fused: bool) -> None:
    assert fused(on_gpus(**model))["bias_activation_fusion"] is is_fused


def test_rotation_is_fused_where_the_exported_command_fuses_it() -> None:
    assert fused(on_gpus(position_embedding_type="none"))["apply_rope_fusion"] is False
    assert fused(on_gpus(rotary_interleaved=True))["apply_rope_fusion"] is False


# No release has DeepSeek-V4's router
RELEASED = sorted(name for name, model in presets().items() if model.moe_router_score_function != "sqrtsoftplus")


@pytest.mark.parametrize("model", RELEASED)
def test_megatron_takes_the_fusions_of_every_preset(model: str) -> None:
    from trainer.engines.megatron.config import build_configs
    from trainer.engines.megatron.fusions import FUSIONS

    cluster = {"gpu": "h100", "nodes": 1, "gpus_per_node": 1}
    recipe = Recipe.model_validate({"name": "preset", "model": model, "cluster": cluster})
    with transformer_engine_played():
        built = build_configs(recipe, transformer_engine=True).transformer
    assert {name: getattr(built, name) for name in FUSIONS} == fused(recipe)


def test_the_output_layer_is_built_without_apex_and_adds_its_gradient_by_itself() -> None:
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    from trainer.engines.megatron.config import build_configs
    from trainer.engines.megatron.cpu import megatron_on_cpu
    from trainer.engines.megatron.fake import fake_process_groups
    from trainer.engines.megatron.fusions import accumulating_without_apex, has_apex
    from trainer.engines.megatron.layers import TRAINABLE
    from trainer.engines.megatron.model import build_chunks

    if has_apex():
        pytest.skip("apex is installed")
    recipe = on_gpus(gpus=1)
    with megatron_on_cpu(), fake_process_groups(recipe, rank=0):
        config = build_configs(recipe, transformer_engine=False).transformer
        config.gradient_accumulation_fusion = True
        with pytest.raises(RuntimeError, match="APEX"):
            build_chunks(recipe, config, local=TRAINABLE)
        with accumulating_without_apex(config) as built:
            built += build_chunks(recipe, config, local=TRAINABLE)
        layers = [module for module in built[0].modules() if isinstance(module, ColumnParallelLinear)]
    assert layers
    assert not any(layer.gradient_accumulation_fusion for layer in layers)
    assert config.gradient_accumulation_fusion  # Transformer Engine's layers would read it
