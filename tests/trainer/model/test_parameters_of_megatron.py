"""Parameter counts against the real Megatron-Core model, on fake tensors: equal, not close."""

from __future__ import annotations

import random
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest
from packaging.version import Version

from tests.draws import few
from tests.trainer.model.real_model import counted, recipe_of
from trainer.estimate.candidates import one
from trainer.estimate.held import held_parameters
from trainer.model.parameters import total_parameters
from trainer.recipe.architecture import Architecture
from trainer.recipe.layout import layout_of
from trainer.recipe.models import presets
from trainer.recipe.rules.mixers import engine_builds
from trainer.recipe.schema import Recipe
from trainer.recipe.validation import ALIASES

pytestmark = [pytest.mark.megatron, pytest.mark.skipif(find_spec("torch") is None, reason="without torch")]

RANDOM_MODELS = 60
BUILDABLE = sorted(  # last the one with most experts with biases, which are built one by one
    (name for name in presets() if engine_builds(recipe_of(name))),
    key=lambda name: presets()[name].add_bias_linear * (presets()[name].num_moe_experts or 1),
)
# model, GPUs, sizes: what production runs use and what stresses the sharing
LAYOUTS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("deepseek-v3", 1024, {"pp": 8, "ep": 32, "num_layers_in_first_pipeline_stage": 5}),
    ("deepseek-v3", 1024, {"tp": 2, "pp": 16, "ep": 64, "etp": 1, "vpp": 2,
                           "pipeline_model_parallel_layout": "Et*3|(tt|)*29m|L"}),
    ("qwen3-235b-a22b", 256, {"tp": 2, "pp": 8, "ep": 32, "etp": 1, "num_layers_in_first_pipeline_stage": 11,
                              "num_layers_in_last_pipeline_stage": 11}),
    ("qwen3-30b-a3b", 16, {"tp": 2, "ep": 4, "etp": 2}),
    ("mixtral-8x22b", 128, {"tp": 4, "pp": 4, "ep": 8, "vpp": 2, "etp": 1}),
    ("mixtral-8x7b", 64, {"tp": 4, "pp": 2, "ep": 2, "etp": 4, "cp": 2}),
    ("gpt-oss-120b", 64, {"tp": 2, "pp": 4, "ep": 8, "etp": 1}),
    ("glm-4.5-air", 64, {"tp": 2, "pp": 2, "ep": 8, "etp": 1}),
    ("deepseek-v2-lite", 16, {"tp": 2, "pp": 1, "ep": 8, "etp": 1}),
)  # fmt: skip


def a_random_model(chance: random.Random) -> dict[str, Any]:
    """Returns a small architecture of everything GPTModel can build without Transformer Engine."""
    heads, moe, latent = chance.choice([2, 4, 8]), chance.random() < 0.85, chance.random() < 0.4
    layers = chance.randint(1, 4)
    model: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": heads * chance.choice([8, 16]),
        "num_attention_heads": heads,
        "vocab_size": chance.choice([128, 256, 1000]),
        "ffn_hidden_size": chance.choice([None, 96, 128]),
        "gated_linear_unit": chance.random() < 0.7,
        "qk_layernorm": chance.random() < 0.5,
        "untie_embeddings_and_output_weights": chance.random() < 0.5,
        "add_bias_linear": chance.random() < 0.3,
        "normalization": chance.choice(["RMSNorm", "LayerNorm"]),
        "multi_latent_attention": latent,
        "position_embedding_type": "rope",
    }
    if latent:
        model |= {"q_lora_rank": chance.choice([None, 24]), "kv_lora_rank": 16, "qk_head_dim": 16,
                  "qk_pos_emb_head_dim": chance.choice([8, 16]), "v_head_dim": chance.choice([8, 24])}  # fmt: skip
    else:
        model |= {"num_query_groups": chance.choice([None, 1, 2]), "kv_channels": chance.choice([None, 8, 32]),
                  "add_qkv_bias": chance.random() < 0.3, "softmax_type": chance.choice(["vanilla", "learnable"]),
                  "position_embedding_type": chance.choice(["rope", "rope", "learned_absolute", "none"])}  # fmt: skip
    if moe:
        freq = chance.choice([1, 2, tuple(chance.choice([0, 1]) for _ in range(layers))])
        shared = None if model["add_bias_linear"] else chance.choice([None, 32])
        model |= {"num_moe_experts": chance.choice([4, 8]), "moe_ffn_hidden_size": chance.choice([16, 40]),
                  "moe_layer_freq": freq, "moe_shared_expert_intermediate_size": shared,
                  "moe_shared_expert_gate": shared is not None and chance.random() < 0.5}  # fmt: skip
    if model["position_embedding_type"] != "learned_absolute":
        model["mtp_num_layers"] = chance.choice([None, None, 1, 2])
        model["mtp_use_repeated_layer"] = model["mtp_num_layers"] == 2 and layers % 2 == 0 and _repeats_layers()
    if not latent and not model.get("mtp_num_layers") and chance.random() < 0.6:
        model |= {"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": chance.choice([2, 3]),
                  "linear_num_key_heads": 2, "linear_num_value_heads": chance.choice([2, 4]),
                  "linear_key_head_dim": 8, "linear_value_head_dim": chance.choice([8, 16]),
                  "attention_output_gate": chance.random() < 0.5}  # fmt: skip
    return {name: value for name, value in model.items() if value is not None}


@pytest.mark.parametrize("first", few(range(0, RANDOM_MODELS, 20), 1))
def test_random_models_have_as_many_parameters_as_we_say(first: int) -> None:
    wrong = []
    for seed in range(first, first + 20):
        recipe = recipe_of(a_random_model(random.Random(seed)), seq_length=64)
        real, ours = sum(counted(recipe)), total_parameters(recipe.architecture, seq_length=64)
        if real != ours:
            wrong.append((seed, real - ours, recipe.architecture.model_dump(exclude_defaults=True)))
    assert not wrong


@pytest.mark.parametrize("name", few(BUILDABLE, 4))
def test_every_preset_has_as_many_parameters_as_we_say(name: str) -> None:
    recipe = recipe_of(name, sizes={"moe_grouped_gemm": True})  # one weight for all experts is built faster
    assert sum(counted(recipe)) == total_parameters(presets()[name])


@pytest.mark.parametrize(("model", "gpus", "sizes"), few(LAYOUTS, 4))
def test_every_pipeline_rank_holds_as_many_parameters_as_we_say(model: str, gpus: int, sizes: dict[str, Any]) -> None:
    recipe = recipe_of(model, gpus=gpus, sizes={ALIASES.get(name, name): size for name, size in sizes.items()})
    pp = layout_of(recipe).pp
    for pp_rank in sorted({0, 1 % pp, max(0, pp - 2), pp - 1}):
        assert counted(recipe, pp_rank=pp_rank) == _ours(recipe, pp_rank), pp_rank


@pytest.mark.parametrize("seed", few(range(20), 4))
def test_random_models_are_shared_by_ranks_as_we_say(seed: int) -> None:
    chance = random.Random(1000 + seed)
    recipe = _on_ranks(Architecture.model_validate(a_random_model(chance)), chance)
    for pp_rank in sorted({0, layout_of(recipe).pp - 1}):
        assert counted(recipe, pp_rank=pp_rank) == _ours(recipe, pp_rank), (pp_rank, recipe)


def _repeats_layers() -> bool:
    """Returns whether the installed Megatron-Core can use one MTP layer again: 0.17 and later."""
    return Version(version("megatron-core")) >= Version("0.17")


def _ours(recipe: Recipe, pp_rank: int) -> tuple[int, int]:
    held = held_parameters(one(recipe))
    dense, experts = held.dense[0, pp_rank], held.experts[0, pp_rank]
    return (dense, experts) if layout_of(recipe).ep > 1 else (dense + experts, 0)


def _on_ranks(model: Architecture, chance: random.Random) -> Recipe:
    """Returns a recipe of the model, with four layers that divide evenly, on eight ranks in a random division."""
    tp, pp = chance.choice([1, 2]), chance.choice([1, 2])
    ep = chance.choice([2, 4]) if model.num_moe_experts else 1
    shares = chance.choice([1, tp]) if ep * tp * pp <= 8 and not model.add_bias_linear else 1  # biases: ETP 1 only
    sizes = {"tp": tp, "pp": pp, "ep": ep, "etp": shares}
    layers = {"num_layers": 4, "moe_layer_freq": 1, "linear_attention_freq": 2, "vocab_size": 1024}
    even = model.model_copy(update=layers)
    return recipe_of(even, gpus=8, sizes={ALIASES[name]: size for name, size in sizes.items()}, seq_length=64)
