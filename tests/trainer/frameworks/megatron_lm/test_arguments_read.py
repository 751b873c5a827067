"""Megatron-LM's arguments read as its own parser does, and what a recipe makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.places import TRACES
from trainer.frameworks.megatron_lm.arguments import defaults, pattern, read_arguments
from trainer.frameworks.megatron_lm.log import logged_values
from trainer.frameworks.megatron_lm.read import read, read_values
from trainer.frameworks.reading import Reading

MINIMAL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --micro-batch-size 1 --vocab-size 512"
)
LOGS = TRACES.parent / "facts" / "trainer_logs"


def reading(words: str = "", *, world: int = 8) -> Reading:
    return read([*MINIMAL.split(), *words.split()], world_size=world)


def test_the_newer_word_of_a_gated_delta_net_is_read_as_the_older() -> None:
    model = reading("--experimental-attention-variant gdn --linear-attention-freq 2").model
    assert model["experimental_attention_variant"] == "gated_delta_net"


def test_letters_behind_a_hybrid_pattern_are_those_of_mtp() -> None:
    model = reading("--hybrid-layer-pattern M*ME/*E/*E --num-experts 4").model
    said = ("num_layers", "hybrid", "mtp_hybrid_override_pattern", "mtp_num_layers")
    assert [model[name] for name in said] == [4, "M*ME", "*E", 2]


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("2", 2),
        ("([0]*3+[1]*58)", (0,) * 3 + (1,) * 58),
        ("[0,1]*24", (0, 1) * 24),
        ("([1]*3+[0]*1)*3", (1, 1, 1, 0) * 3),
        ("2*[0]+[1]", (0, 0, 1)),
    ],
)
def test_a_layer_pattern_is_what_python_makes_of_it(text: str, layers: Any) -> None:
    assert pattern(text) == layers


@pytest.mark.parametrize("text", ["all", "[0]*3+", "__import__('os')", "[1]*10**9", "([1]", "[1]*99999999999"])
def test_what_is_no_layer_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="layer"):
        pattern(text)


def test_an_absent_flag_is_megatrons_default_not_the_recipes() -> None:
    said = reading("--num-experts 8 --bf16")
    assert said.knobs["moe_token_dispatcher_type"] == "allgather"
    assert said.knobs["moe_grouped_gemm"] is False
    assert said.knobs["global_batch_size"] == 8
    assert said.knobs["precision"] == "bf16"
    expected = {
        "gated_linear_unit": False,
        "untie_embeddings_and_output_weights": False,
        "add_bias_linear": True,
        "normalization": "LayerNorm",
        "position_embedding_type": "learned_absolute",
        "hidden_dropout": 0.1,
        "moe_aux_loss_coeff": 0.0,
        "make_vocab_size_divisible_by": 128,
    }
    assert {name: said.model[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "knob", "value"),
    [
        ("--recompute-activations", "recompute_granularity", "selective"),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
            "virtual_pipeline_model_parallel_size",
            2,
        ),
        ("--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2", "overlap_p2p_comm", True),
        ("--pipeline-model-parallel-size 2", "overlap_p2p_comm", False),
        ("--enable-cuda-graph", "cuda_graph_impl", "local"),
        ("--external-cuda-graph", "cuda_graph_impl", "transformer_engine"),
        ("--bf16 --grad-reduce-in-bf16", "grad_reduce_in_fp32", False),
        ("--bf16", "grad_reduce_in_fp32", None),
        ("--bf16 --fp8-format e4m3 --fp8-recipe blockwise", "precision", "fp8_blockwise"),
        ("--bf16 --fp8-format hybrid", "precision", "fp8_delayed"),
        ("--bf16 --fp8-format hybrid --fp8-recipe tensorwise", "precision", "fp8_current"),
        ("", "precision", "fp32"),
        ("--sequence-parallel", "sequence_parallel", False),
        ("--sequence-parallel --tensor-model-parallel-size 2", "sequence_parallel", True),
        ("--main-grads-dtype bf16", "main_grads_dtype", "bfloat16"),
        ("--cpu-offloading-num-layers 2", "cpu_offloading", True),
        ("--optimizer-cpu-offload", "optimizer_offload_fraction", 1.0),
        (
            "--num-experts 8 --moe-enable-deepep --moe-token-dispatcher-type flex",
            "moe_flex_dispatcher_backend",
            "deepep",
        ),
        ("--moe-router-padding-for-fp8", "moe_router_padding_for_quantization", True),
        ("--seq-length 64 --seq-length 256", "seq_length", 256),
    ],
)
def test_what_validation_makes_of_a_flag_is_what_the_recipe_says(words: str, knob: str, value: Any) -> None:
    assert reading(words).knobs[knob] == value


def test_what_a_recipe_does_not_decide_stays_verbatim_and_in_order() -> None:
    words = "--data-path 0.3 a 0.7 b --seed -1 --team-flag x y --lr=1e-4 --bf16 --tokenizer-type NullTokenizer"
    said = reading(words)
    kept = "--vocab-size 512 --data-path 0.3 a 0.7 b --seed -1 --team-flag x y --lr=1e-4 --tokenizer-type NullTokenizer"
    assert said.rest == tuple(kept.split())
    assert said.own == ("--team-flag x y",)


def test_a_value_that_the_knob_does_not_have_stays_and_is_said() -> None:
    said = reading("--transformer-impl inference_optimized --position-embedding-type mrope")
    assert [each.words for each in said.kept] == [
        "--transformer-impl inference_optimized",
        "--position-embedding-type mrope",
    ]
    assert "transformer_impl" not in said.knobs


def test_a_value_that_the_parser_would_refuse_stays_and_is_said() -> None:
    said = reading("--pipeline-model-parallel-size two --bf16 yes")
    assert [each.words for each in said.kept] == ["--pipeline-model-parallel-size two", "--bf16 yes"]


def test_flags_without_which_nothing_starts_are_missed() -> None:
    assert read(["--num-layers", "2"], world_size=1).missing == (
        "--hidden-size",
        "--num-attention-heads",
        "--seq-length",
        "--micro-batch-size",
    )


def test_the_last_of_two_flags_wins_as_in_argparse() -> None:
    assert read_arguments(["--lr", "1", "--lr", "2"]).values["lr"] == 2.0


@pytest.mark.skipif(not LOGS.is_dir(), reason="without ../shared")
@pytest.mark.parametrize("name", ["mlm_0161_ep2_trace.log", "mlm_0161_pp2.log", "mlm_2026_08_ep2_trace.log"])
def test_a_log_says_the_same_after_it_is_settled_again(name: str) -> None:
    values = logged_values((LOGS / name).read_text())
    said = read_values({**defaults(), **values}, world_size=values["world_size"])
    assert (said.missing, dict(said.unread)) == ((), {})
    assert said.knobs["pipeline_model_parallel_size"] * said.knobs["expert_model_parallel_size"] == 2
    assert said.model["hidden_size"] == values["hidden_size"]
