"""The recipe as a value: replace, diff, digest, and YAML that reads back the same."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.trainer.recipe.drawn import changes
from trainer.errors import BadInputError
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.identity import ACTS_WHEN, SPELLING
from trainer.recipe.knobs import KNOBS
from trainer.recipe.load import recipe_from
from trainer.recipe.rules.examples import recipe_of
from trainer.recipe.rules.rule import Example
from trainer.recipe.source import parse_source

PLAIN = recipe_of(Example())


def read(text: str) -> Recipe:
    return recipe_from(parse_source(text, name="recipe.yaml"))


@settings(max_examples=40)
@given(changes)
def test_yaml_reads_back_the_same_recipe(made: dict[str, Any]) -> None:
    recipe = PLAIN.replace(made)
    assert read(recipe.to_yaml()) == recipe


@settings(max_examples=40)
@given(changes)
def test_the_resolved_yaml_is_the_same_experiment_and_resolves_to_itself(made: dict[str, Any]) -> None:
    recipe = PLAIN.replace(made)
    resolved = read(recipe.to_yaml(resolved=True))
    assert resolved.digest() == recipe.digest()
    assert recipe.diff(resolved) == {}
    assert resolved.to_yaml(resolved=True) == recipe.to_yaml(resolved=True)


@settings(max_examples=40)
@given(changes)
def test_a_diff_is_what_turns_one_recipe_into_the_other(made: dict[str, Any]) -> None:
    recipe = PLAIN.replace(made)
    there = {name: value for name, (_, value) in PLAIN.diff(recipe).items()}
    assert PLAIN.replace(there).diff(recipe) == {}
    assert set(there) <= set(made)


@settings(max_examples=40)
@given(changes)
def test_json_reads_back_the_same_recipe(made: dict[str, Any]) -> None:
    recipe = PLAIN.replace(made)
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_replace_reaches_every_section_and_leaves_the_original() -> None:
    changed = PLAIN.replace({"micro_batch_size": 2, "tensor_model_parallel_size": 2, "manual_gc": True})
    assert (changed.training.micro_batch_size, changed.parallelism.tensor_model_parallel_size) == (2, 2)
    assert changed.knob("manual_gc") is True
    assert PLAIN.knob("micro_batch_size") == 1


def test_replace_names_every_wrong_knob() -> None:
    with pytest.raises(BadInputError) as caught:
        PLAIN.replace({"micro_batch": 2, "manual_gc": "yes", "seq_length": 0})
    assert [problem.where.split()[-1] for problem in caught.value.problems] == [
        "knobs.micro_batch",
        "knobs.manual_gc",
        "training.seq_length",
    ]


def test_asking_for_a_knob_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        PLAIN.knob("no_such_knob")


@pytest.mark.parametrize(
    "inert",
    [
        {"recompute_modules": ("moe",)},
        {"recompute_method": "block", "recompute_num_layers": 2},
        {"recompute_granularity": "selective", "recompute_modules": ()},
        {"moe_flex_dispatcher_backend": "hybridep", "moe_hybridep_num_sms": 32},
        {"virtual_pipeline_model_parallel_size": 1},
        {"expert_tensor_parallel_size": 1},
        {"delay_wgrad_compute": True},
        {"manual_gc_interval": 10},
        {"optimizer_offload_fraction": 0.5},
        {"exp_avg_dtype": "bfloat16"},
        {"cuda_graph_scope": ("attn",)},
        {"grad_reduce_in_fp32": True},
        {"cp_comm_type": "a2a"},
        {"offload_modules": ("moe_act",)},
    ],
)
def test_what_cannot_act_does_not_change_the_digest(inert: dict[str, Any]) -> None:
    changed = PLAIN.replace(inert)
    assert PLAIN.diff(changed)
    assert changed.digest() == PLAIN.digest()


@pytest.mark.parametrize(
    "acting",
    [
        {"micro_batch_size": 2},
        {"recompute_granularity": "selective"},
        {"moe_token_dispatcher_type": "flex"},
        {"CUDA_DEVICE_MAX_CONNECTIONS": 32},
        {"moe_grouped_gemm": False},
        {"threads_per_rank": 2},
        {"expert_tensor_parallel_size": 2},
    ],
)
def test_what_acts_changes_the_digest(acting: dict[str, Any]) -> None:
    assert PLAIN.replace(acting).digest() != PLAIN.digest()


def test_the_order_of_a_list_of_modules_does_not_matter() -> None:
    one = PLAIN.replace({"recompute_granularity": "selective", "recompute_modules": ("moe_act", "layernorm")})
    other = one.replace({"recompute_modules": ("layernorm", "moe_act")})
    assert one.digest() == other.digest()


def test_names_deadlines_and_the_number_of_steps_do_not_change_the_digest() -> None:
    recipe = load_recipe("cpu-moe")
    data = recipe.model_dump()
    data["name"] = "other"
    data["tune"]["patience"] = 9
    data["burst"] |= {"deadline_s": 7.0, "measure_steps": 50, "warmup_steps": 9, "trace_steps": 0}
    assert Recipe.model_validate(data).digest() == recipe.digest()
    data["burst"]["engine"] = "simulated"
    assert Recipe.model_validate(data).digest() != recipe.digest()


def test_a_preset_and_its_architecture_written_out_share_a_digest() -> None:
    data = PLAIN.model_dump() | {"model": "mixtral-8x7b"}
    named = Recipe.model_validate(data)
    written = Recipe.model_validate(data | {"model": named.architecture.model_dump()})
    assert named.digest() == written.digest()


def test_gpu_environment_does_not_count_on_a_cpu() -> None:
    recipe = load_recipe("cpu-moe")
    assert recipe.replace({"CUDA_DEVICE_MAX_CONNECTIONS": 32}).digest() == recipe.digest()


def test_the_tables_of_inert_knobs_name_knobs() -> None:
    assert set(ACTS_WHEN) | set(SPELLING) <= set(KNOBS)


def test_a_copy_with_other_fields_has_its_own_digest(tmp_path: Path) -> None:
    other = PLAIN.model_copy(update={"training": PLAIN.training.model_copy(update={"seq_length": 2048})})
    assert PLAIN.digest() != other.digest()
