"""Checks what engine `megatron` refuses, and what it hides from the ranks of a CPU recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.burst import Burst
from trainer.engines.megatron.engine import MegatronEngine, environment_of
from trainer.engines.megatron.needs import missing_transformer_engine, with_local_layers
from trainer.errors import ToolError
from trainer.recipe import Recipe


def gpu(**knobs: Any) -> Recipe:
    recipe = Recipe.model_validate(
        {"name": "r", "model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 1, "gpus_per_node": 8}}
    )
    return recipe.replace(knobs)


def test_a_plain_recipe_needs_no_transformer_engine() -> None:
    assert missing_transformer_engine(gpu()) is None


def test_everything_that_needs_transformer_engine_is_named_at_once() -> None:
    said = missing_transformer_engine(gpu(precision="fp8_blockwise", moe_permute_fusion=True, tp_comm_overlap=True))
    assert said is not None
    assert "precision: fp8_blockwise" in said
    assert "moe_permute_fusion" in said
    assert "moe-autotune[gpu]" in said
    assert "tp_comm_overlap" not in said  # it cannot act with TP 1


def test_the_ranks_of_a_cpu_recipe_see_no_gpu() -> None:
    cpu = gpu().model_copy(update={"cluster": gpu().cluster.model_copy(update={"gpu": "cpu"})})
    assert environment_of(cpu)["CUDA_VISIBLE_DEVICES"] == ""
    assert environment_of(gpu(CUDA_DEVICE_MAX_CONNECTIONS=1)) == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@pytest.mark.parametrize(("section", "change"), [("cluster", {"nodes": 2}), ("burst", {"launcher": "nowhere"})])
def test_ranks_on_other_machines_are_refused_and_none_is_started(
    tmp_path: Path, section: str, change: dict[str, Any]
) -> None:
    recipe = gpu().model_copy(update={section: getattr(gpu(), section).model_copy(update=change)})
    with pytest.raises(ToolError, match="local"):
        MegatronEngine(tmp_path / "engine").run(Burst(number=1, recipe=recipe, folder=tmp_path / "burst"))
    assert not (tmp_path / "engine").exists()


def test_attention_that_the_local_layers_do_not_have_needs_transformer_engine() -> None:
    sinks = Recipe.model_validate(
        {"name": "r", "model": "gpt-oss-20b", "cluster": {"gpu": "h100", "nodes": 1, "gpus_per_node": 8}}
    )
    said = missing_transformer_engine(sinks)
    assert said is not None
    assert "softmax_type: learnable" in said
    assert "window_size" in said


def test_a_layer_without_transformer_engine_is_measured_without_what_needs_it() -> None:
    asked = gpu(moe_permute_fusion=True, moe_router_fusion=True, moe_grouped_gemm=True, moe_router_dtype="fp32")
    plain = with_local_layers(asked)
    assert missing_transformer_engine(plain) is None
    assert plain.diff(asked).keys() == {"moe_permute_fusion", "moe_router_fusion", "moe_grouped_gemm"}
