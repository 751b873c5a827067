"""Checks which preset a Bridge recipe's name stands for. Names: Megatron-Bridge 0.6.2."""

from __future__ import annotations

import pytest

from trainer.frameworks.megatron_bridge.read import preset_of


@pytest.mark.parametrize(
    ("recipe", "preset"),
    [
        ("qwen3_30b_a3b_pretrain_config", "qwen3-30b-a3b"),
        ("qwen3_235b_a22b_pretrain_64gpu_gb200_fp8mx_config", "qwen3-235b-a22b"),
        ("deepseek_v2_lite_pretrain_config", "deepseek-v2-lite"),
        ("deepseek_v4_flash_no_mtp_sft_config", "deepseek-v4-flash"),
        ("nemotron_3_nano_sft_8gpu_h100_bf16_config", "nemotron-3-nano-30b-a3b"),
        ("moonlight_16b_peft_2gpu_h100_bf16_config", "moonlight-16b-a3b"),
        ("qwen35_vl_122b_a10b_pretrain_config", "qwen3.5-122b-a10b"),
        ("qwen3_vl_30b_a3b_sft_config", "qwen3-30b-a3b"),
        ("kimi_k25_vl_sft_config", "kimi-k2.5"),
    ],
)
def test_a_name_finds_its_preset(recipe: str, preset: str) -> None:
    assert preset_of(recipe) == preset


@pytest.mark.parametrize(
    "recipe",
    [
        *("nemotron_3_nano_4b_pretrain_config", "nemotron_3_5_lightning_pretrain_config", "nemotron_3_config"),
        *("qwen3_8b_pretrain_config", "qwen3_config", "glm_45v_sft_config", "glm52_pretrain_416gpu_h100_bf16_config"),
        *("my_recipe", ""),
    ],
)
def test_another_model_of_the_family_finds_none(recipe: str) -> None:
    assert preset_of(recipe) is None
