"""A recipe in the words of one version of Megatron-LM: nothing is left out silently, nothing is written that the
version does not take."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.rows import filled, for_every_row
from trainer.errors import BadInputError
from trainer.frameworks.megatron_lm.flags import BY_NAME, FLAGS, VERSIONS, flags_of, version_of
from trainer.frameworks.megatron_lm.model import model_spellings
from trainer.frameworks.megatron_lm.refusals import NO_SUCH_FLAG, findings_for
from trainer.frameworks.megatron_lm.required import mock_data_words, required_environment, required_words
from trainer.frameworks.megatron_lm.spelling import Spelling, knob_spellings
from trainer.recipe import Recipe
from trainer.recipe.architecture import Architecture
from trainer.recipe.frameworks import NOT_EXPRESSED
from trainer.recipe.knobs import KNOBS
from trainer.recipe.models import presets
from trainer.recipe.rules import FindingKind


def recipe(model: str = "qwen3-30b-a3b", gpu: str = "h100", **knobs: Any) -> Recipe:
    base = Recipe.model_validate({"name": "r", "model": model, "cluster": {"gpu": gpu, "nodes": 2}})
    return base.replace(knobs)


def spelled(given: Recipe, version: str = "head") -> dict[str, Spelling]:
    return {each.name: each for each in (*model_spellings(given, version), *knob_spellings(given, version))}


def errors(given: Recipe, version: str) -> set[str]:
    return {found.rule for found in findings_for(given, version) if found.kind is FindingKind.ERROR}


def test_every_flag_names_an_existing_knob_or_field() -> None:
    known = {"model": set(Architecture.model_fields), "knob": set(KNOBS), "precision": {"precision"}}
    for flag in filled(FLAGS):
        assert flag.field is None if flag.part == "required" else flag.field in known[flag.part]


def test_no_flag_has_two_rows() -> None:
    assert len(BY_NAME) == len(FLAGS)


def test_every_knob_with_a_flag_in_the_knob_table_has_a_row() -> None:
    without = {name for name, knob in KNOBS.items() if knob.megatron_lm and not flags_of(name)}
    assert without == {"cpu_offloading"}  # said by the number of its layers


@for_every_row(product(presets(), VERSIONS))
def test_every_word_written_is_known_to_its_version(model_and_version: tuple[str, str]) -> None:
    model, version = model_and_version
    given = recipe(model)
    groups = [each.words for each in spelled(given, version).values()]
    groups += [each.words for each in required_words(given, version)]
    for word in filled(word for group in groups for word in group if word.startswith("--") and word != "--spec"):
        assert BY_NAME[word].known_to(version), word


@for_every_row(presets())
def test_every_field_is_written_or_has_a_reason(model: str) -> None:
    for each in filled(spelled(recipe(model)).values()):
        assert bool(each.words) != bool(each.why_not), each


@pytest.mark.parametrize(
    ("text", "version"),
    [(None, "head"), ("main", "head"), ("core_v0.16.1", "0.16.1"), ("v0.18", "0.18"), ("0.17.2", "0.17.2")],
)
def test_a_version_is_named_in_several_ways(text: str | None, version: str) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize("text", ["0.1", "seventeen", "0.12.0"])
def test_what_is_no_version_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(BadInputError, match=r"0\.16\.1"):
        version_of(text)


def test_a_graph_of_the_whole_iteration_is_said_in_the_word_of_the_version() -> None:
    given = recipe(cuda_graph_impl="full_iteration")
    assert spelled(given)["cuda_graph_impl"].words == ("--cuda-graph-impl", "full_iteration")
    assert spelled(given, "0.16.1")["cuda_graph_impl"].words == ("--cuda-graph-impl", "local")
    assert spelled(given, "0.16.1")["cuda_graph_scope"].words == ("--cuda-graph-scope", "full_iteration")
    assert ("--no-check-for-nan-in-loss-and-grad",) in [each.words for each in required_words(given)]


def test_graph_modules_have_their_old_name_in_an_old_version() -> None:
    given = recipe(cuda_graph_impl="transformer_engine", cuda_graph_scope=["attn"], use_te_rng_tracker=True)
    assert spelled(given)["cuda_graph_scope"].words == ("--cuda-graph-modules", "attn")
    assert spelled(given, "0.17")["cuda_graph_scope"].words == ("--cuda-graph-scope", "attn")


def test_a_hybrid_pattern_has_its_old_name_in_an_old_version() -> None:
    given = recipe("nemotron-3-nano-30b-a3b")
    assert spelled(given)["hybrid"].words[0] == "--hybrid-layer-pattern"
    assert spelled(given, "0.16.1")["hybrid"].words[:2] == ("--is-hybrid-model", "--hybrid-override-pattern")
    assert spelled(given)["activation_func"].words == ("--squared-relu",)


def test_the_letters_of_mtp_stand_behind_those_of_the_decoder() -> None:
    given = recipe("nemotron-3-super-120b-a12b")
    assert spelled(given)["hybrid"].words[1].endswith("EMEMEMEME/*E")
    old = spelled(given, "0.16.1")
    assert old["hybrid"].words[2].endswith("EMEMEMEME")
    assert old["mtp_hybrid_override_pattern"].lost


def test_a_value_whose_flag_came_later_is_lost_in_an_old_version_and_refused() -> None:
    given = recipe(moe_permute_fusion_into_hybridep=True, moe_token_dispatcher_type="flex",
                   moe_flex_dispatcher_backend="hybridep")  # fmt: skip
    old = spelled(given, "0.16.1")["moe_permute_fusion_into_hybridep"]
    assert (old.lost, old.words) == (True, ())
    assert old.wanted == ("--moe-permute-fusion-into-hybridep",)
    assert "came with 0.17.1" in old.why_not
    assert NO_SUCH_FLAG in errors(given, "0.16.1")
    assert NO_SUCH_FLAG not in errors(given, "head")


def test_yarn_without_latent_attention_is_refused_before_0_19() -> None:
    given = recipe("gpt-oss-20b")
    assert spelled(given)["position_embedding_type"].words == ("--position-embedding-type", "yarn")
    assert spelled(given)["activation_func"].words == ("--quick-geglu",)
    assert spelled(given)["yarn_correction_range_round_to_int"].words == ("--no-yarn-correction-range-round-to-int",)
    assert errors(given, "0.18") == {NO_SUCH_FLAG}
    assert errors(given, "0.19") == set()


def test_a_knob_no_version_can_express_is_a_warning() -> None:
    found = [each for each in findings_for(recipe("kimi-k2")) if each.rule == NOT_EXPRESSED]
    assert [each.knobs for each in found] == [("beta_fast",)]
    assert found[0].kind is FindingKind.WARNING


def test_values_at_their_default_are_written_where_the_versions_disagree_about_it() -> None:
    given = recipe(use_megatron_fsdp=True, use_distributed_optimizer=True)
    assert spelled(given)["data_parallel_sharding_strategy"].words == ("--data-parallel-sharding-strategy", "no_shard")


def test_an_interleaved_layout_without_overlap_says_so() -> None:
    given = recipe(pipeline_model_parallel_size=4, pipeline_model_parallel_layout="Et*6|(t*6|)*6t*6L")
    assert spelled(given)["overlap_p2p_comm"].words == ("--no-overlap-p2p-communication",)


def test_one_connection_is_exported_where_the_recipe_leaves_it_open_and_demanded_where_it_does_not() -> None:
    split: dict[str, Any] = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    assert required_environment(recipe(**split))["CUDA_DEVICE_MAX_CONNECTIONS"].words == ("1",)
    assert "hopper-connections" not in errors(recipe(**split), "head")
    written = recipe(**split, CUDA_DEVICE_MAX_CONNECTIONS=8)
    assert required_environment(written) == {}
    assert "hopper-connections" in errors(written, "head")
    assert required_environment(recipe(gpu="b200", **split)) == {}


def test_a_variable_that_fine_grained_offload_needs_is_exported() -> None:
    given = recipe(fine_grained_activation_offloading=True, offload_modules=["moe_act"])
    assert required_environment(given)["NVTE_CPU_OFFLOAD_V1"].words == ("1",)
    assert "fine-offload-environment" not in errors(given, "head")
    assert "fine-offload-environment" in errors(given.replace({"NVTE_CPU_OFFLOAD_V1": 0}), "head")


def test_the_vocabulary_is_the_recipes_with_the_null_tokenizer_of_every_version() -> None:
    assert mock_data_words(recipe(), "0.16.1")[-1] == "151935"  # and one token of its own
    assert mock_data_words(recipe(), "0.18")[-1] == "151936"
    assert spelled(recipe())["make_vocab_size_divisible_by"].words == ("--make-vocab-size-divisible-by", "1")


def test_a_latent_model_is_not_rotated_by_fused_kernels() -> None:
    assert ("--no-rope-fusion",) in [each.words for each in required_words(recipe("deepseek-v3"))]
    assert ("--no-rope-fusion",) not in [each.words for each in required_words(recipe())]


def test_a_rule_of_another_launcher_is_not_asked() -> None:
    assert "hybrid-model" not in errors(recipe("qwen3-next-80b-a3b"), "head")
