"""The tables of models and GPUs, and the patterns in them."""

import pytest

from tests.rows import filled
from trainer.recipe.hardware import known_hardware
from trainer.recipe.models import parse_layer_freq, presets
from trainer.recipe.rules.examples import recipe_of
from trainer.recipe.rules.rule import Example


def test_four_of_the_models_are_hybrid() -> None:
    assert {name for name, model in presets().items() if model.hybrid} == {
        "qwen3-next-80b-a3b",
        "nemotron-3-nano-30b-a3b",
        "nemotron-3-super-120b-a12b",
        "nemotron-3-ultra-550b-a55b",
    }


def test_every_layer_pattern_is_as_long_as_its_model() -> None:
    for name, model in filled(presets().items()):
        assert len(model.moe_layers) == model.num_layers, name


def test_deepseek_v3_reads_as_published() -> None:
    model = presets()["deepseek-v3"]
    assert model.moe_layers == (False,) * 3 + (True,) * 58
    assert (model.num_moe_experts, model.moe_router_topk) == (256, 8)
    assert (model.moe_router_num_groups, model.moe_router_group_topk) == (8, 4)
    assert (model.q_lora_rank, model.kv_lora_rank, model.v_head_dim) == (1536, 512, 128)
    assert (model.multi_latent_attention, model.mtp_num_layers, model.gated_linear_unit) == (True, 1, True)


def test_a_model_without_compressed_queries_says_so() -> None:
    assert presets()["deepseek-v2-lite"].q_lora_rank is None


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("all", 1),
        ("[0]*3+[1]*2", (0, 0, 0, 1, 1)),
        ("[0] + [1]*2", (0, 1, 1)),
        ("[0,1]*2", (0, 1, 0, 1)),
    ],
)
def test_layer_patterns_are_read(text: str, flags: object) -> None:
    assert parse_layer_freq(text) == flags


@pytest.mark.parametrize("text", ["", "[2]", "[0]*3*4", "__import__('os')", "[0]*-1", "[1]+all"])
def test_anything_else_is_no_layer_pattern(text: str) -> None:
    with pytest.raises(ValueError, match="not a layer pattern"):
        parse_layer_freq(text)


def test_the_gpus_of_the_contract_and_the_cpu_are_known() -> None:
    assert set(known_hardware()) >= {"h100", "h800", "h200", "b200", "b300", "gb200", "gb300", "cpu"}


def test_a_gpu_has_its_figures() -> None:
    h100, gb200 = known_hardware()["h100"], known_hardware()["gb200"]
    assert (h100.memory_gib, h100.gpus_per_node, h100.nvlink_domain_gpus, h100.architecture) == (79.18, 8, 8, "hopper")
    assert (gb200.nvlink_domain_gpus, gb200.gpus_per_node, gb200.scaleout_gbit_s) == (72, 4, 400)
    assert known_hardware()["h800"].nvlink_gb_s == 200


# totalGlobalMem of real traces, which the diagnosis of a trace takes for the limit
@pytest.mark.parametrize(
    ("gpu", "driver_bytes"), [("h100", 85018279936), ("b200", 191503138816), ("b300", 287431131136)]
)
def test_the_memory_is_what_the_driver_reports(gpu: str, driver_bytes: int) -> None:
    assert known_hardware()[gpu].memory_gib == round(driver_bytes / 2**30, 2)


def test_the_peak_is_that_of_the_precision() -> None:
    assert recipe_of(Example()).peak_tflops == 989.4
    assert recipe_of(Example(knobs={"precision": "fp8_current"})).peak_tflops == 1978.9
    assert recipe_of(Example(knobs={"precision": "mxfp8"}, cluster={"gpu": "b200"})).peak_tflops == 4500


def test_a_cpu_has_no_peak_and_no_limit_of_its_own() -> None:
    recipe = recipe_of(Example(cluster={"gpu": "cpu"}))
    assert recipe.peak_tflops is None
    assert recipe.memory_limit_gib is None
