"""A dry run of one rank: what it holds is the closed form's, what Megatron refuses is quoted."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import pytest

from tests.draws import few
from tests.trainer.model.real_model import recipe_of
from tests.trainer.recipe import tuned_recipes
from trainer.dry_run import GIB, STATE
from trainer.engines.megatron import dry_run
from trainer.engines.megatron.substitutions import substituted, substitutes
from trainer.estimate.candidates import one
from trainer.estimate.memory.estimate import memory_of
from trainer.recipe import Recipe
from trainer.recipe.frameworks import check_for
from trainer.recipe.layout import layout_of
from trainer.recipe.rules.rule import FrameworkName

pytestmark = [pytest.mark.megatron, pytest.mark.skipif(find_spec("torch") is None, reason="without torch")]

MODEL: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_query_groups": 4, "vocab_size": 2048,
    "ffn_hidden_size": 512, "num_moe_experts": 8, "moe_ffn_hidden_size": 256,
}  # fmt: skip
LATENT = {"multi_latent_attention": True, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_head_dim": 32,
          "qk_pos_emb_head_dim": 16, "v_head_dim": 32, "mtp_num_layers": 1,
          "moe_layer_freq": (0, 1, 1, 1), "moe_shared_expert_intermediate_size": 256}  # fmt: skip
SHARDED = {"use_distributed_optimizer": True}
AWARE = SHARDED | {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bfloat16", "exp_avg_sq_dtype": "bfloat16"}
# additions to the model, GPUs, sizes and knobs
CASES: tuple[tuple[dict[str, Any], int, dict[str, Any]], ...] = (
    ({}, 16, SHARDED | {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2,
                        "expert_tensor_parallel_size": 2, "pipeline_model_parallel_size": 2}),
    ({"num_layers": 8}, 16, SHARDED | {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2,
                                       "expert_model_parallel_size": 4}),
    ({}, 64, AWARE | {"expert_model_parallel_size": 8, "store_param_remainders": False}),
    (LATENT, 16, SHARDED | {"expert_model_parallel_size": 8, "recompute_granularity": "selective",
                            "recompute_modules": ("mla_up_proj", "moe_act", "layernorm")}),
    ({"num_moe_experts": None, "moe_ffn_hidden_size": None}, 8, SHARDED | {"tensor_model_parallel_size": 2}),
    ({}, 1, {}),
    ({}, 8, SHARDED | {"expert_model_parallel_size": 8}),
    ({}, 16, {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1}),
    ({}, 16, SHARDED | {"context_parallel_size": 2, "expert_model_parallel_size": 8}),
    ({}, 64, AWARE | {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 8}),
    (LATENT, 16, SHARDED | {"pipeline_model_parallel_size": 4, "expert_model_parallel_size": 4}),
    (LATENT, 32, {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "expert_model_parallel_size": 8,
                  "expert_tensor_parallel_size": 1}),
    (LATENT, 16, SHARDED | {"expert_model_parallel_size": 8, "recompute_granularity": "full",
                            "recompute_method": "uniform", "recompute_num_layers": 1}),
    ({"add_bias_linear": True, "softmax_type": "learnable"}, 8, SHARDED | {"expert_model_parallel_size": 4}),
)  # fmt: skip


def recipe(added: dict[str, Any], gpus: int, knobs: dict[str, Any]) -> Recipe:
    model = {name: value for name, value in (MODEL | added).items() if value is not None}
    given = recipe_of(model, gpus=gpus, sizes=knobs, seq_length=512, global_batch_size=8 * gpus)
    return given.replace({"moe_grouped_gemm": "num_moe_experts" in model})


def refused(**knobs: Any) -> dict[str, Any]:
    result = dry_run.run(recipe({}, 16, knobs), pp_rank=0)
    assert result["stopped"] is None
    found: dict[str, Any] = result["refused"]
    return found


def _fails_in_this_release(given: Recipe) -> bool:
    findings = check_for(given, FrameworkName.CORE, version("megatron-core"))
    return "mtp-recomputed-whole" in {finding.rule for finding in findings}


@pytest.mark.parametrize(("added", "gpus", "knobs"), few(CASES, 1))
def test_a_rank_holds_what_the_closed_form_says(added: dict[str, Any], gpus: int, knobs: dict[str, Any]) -> None:
    given = recipe(added, gpus, knobs)
    closed = memory_of(one(given.replace(substitutes(given)))).by_part
    for pp_rank in {0, layout_of(given).pp - 1}:
        result = dry_run.run(given, pp_rank=pp_rank)
        if _fails_in_this_release(given):
            assert result["refused"]
            continue
        assert (result["refused"], result["stopped"]) == (None, None)
        real = sum(result["bytes"][part] for part in STATE) / GIB
        ours = sum(float(closed[part][0, pp_rank]) for part in STATE)
        assert real == pytest.approx(ours, rel=0.005)
        assert result["peak_bytes"] > sum(result["bytes"].values())


@pytest.mark.parametrize("some", few([slice(0, None, 6), slice(2, None, 3)], 1), ids=str)
def test_no_configuration_of_a_tuned_recipe_is_refused(some: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's hand-tuned recipes all run on Megatron-Core. One recipe per layout, of some layouts, is configured; no
    model is built."""

    def no_further() -> None:
        raise dry_run.NotFollowed("configured")

    monkeypatch.setattr("trainer.engines.megatron.fake.fake_tensors", no_further)
    recipes = (tuned_recipes.recipe_of_row(row) for row in tuned_recipes.rows())
    layouts = {(r.architecture, r.parallelism, str(r.knobs)): r for r in recipes if r.architecture.hybrid is None}
    refused = {r.name: dry_run.run(r, pp_rank=0)["refused"] for r in [*layouts.values()][some]}
    assert refused
    assert {name: why for name, why in refused.items() if why} == {}


def test_recomputation_frees_what_it_recomputes() -> None:
    knobs = SHARDED | {"expert_model_parallel_size": 8}
    model = LATENT | {"num_layers": 2, "moe_layer_freq": (0, 1), "mtp_num_layers": None}
    modules = {"recompute_granularity": "selective", "recompute_modules": ("mla_up_proj", "moe_act")}
    whole, saved = (dry_run.run(recipe(model, 8, knobs | more), pp_rank=0)["peak_bytes"] for more in ({}, modules))
    assert saved < whole


@pytest.mark.parametrize(
    ("phase", "words", "knobs"),
    [
        ("process groups", "not divisible", {"expert_model_parallel_size": 3}),
        ("configuration", "pipeline_model_parallel_layout", {"pipeline_model_parallel_size": 2,
                                                             "pipeline_model_parallel_layout": "Et|ttt|L"}),
        ("model", "divisible", {"pipeline_model_parallel_size": 16}),
        ("configuration", "sequence parallel", {"sequence_parallel": True}),
    ],
)  # fmt: skip
def test_a_refusal_of_megatron_is_quoted(phase: str, words: str, knobs: dict[str, Any]) -> None:
    found = refused(**knobs)
    assert found["phase"] == phase
    assert words in found["message"]
    assert found["where"].startswith("megatron/core/")


def test_what_fake_tensors_cannot_show_is_no_refusal() -> None:
    alone = {"pipeline_model_parallel_size": 4, "pipeline_model_parallel_layout": "Et|ttt|m|L"}
    for end in (2, 3):
        result = dry_run.run(recipe(LATENT, 8, SHARDED | alone), pp_rank=end)
        assert result["refused"] is None
        assert result["stopped"]["phase"] == "step"
        assert set(result["bytes"]) == set(STATE)
    assert dry_run.run(recipe(LATENT, 8, SHARDED | alone), pp_rank=0)["stopped"] is None


def test_everything_that_runs_otherwise_is_said() -> None:
    asked = {"moe_token_dispatcher_type": "flex", "precision": "fp8_blockwise", "cuda_graph_impl": "local"}
    rows = {row["knob"]: row for row in substituted(recipe({}, 8, asked))}
    assert {*asked, "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"} == set(rows)
    assert rows["precision"]["asked"] == "fp8_blockwise"
    assert rows["precision"]["ran"] == "bf16"
    assert all(row["why"] for row in rows.values())
    assert substituted(recipe({"num_moe_experts": None}, 8, {})) == []
