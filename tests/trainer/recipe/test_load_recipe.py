"""Reading recipes: what is good comes through, and every problem is named at once with its place and cure."""

import os
from pathlib import Path

import pytest

from trainer.errors import BadInputError, Problem
from trainer.recipe import load_recipe, packaged_examples
from trainer.recipe.layout import pipeline_stages
from trainer.recipe.rules import check
from trainer.recipe.schema import Recipe

GOOD = """
model: qwen3-30b-a3b
cluster: {gpu: h100, nodes: 2}
parallelism: {tp: 2, ep: 8, etp: 1}
knobs:
  sequence_parallel: true
  recompute_modules: [moe_act, layernorm]
"""


def problems(tmp_path: Path, text: str | bytes) -> list[Problem]:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(BadInputError) as caught:
        load_recipe(str(path))
    assert caught.value.problems
    return list(caught.value.problems)


def only(tmp_path: Path, text: str | bytes) -> Problem:
    (problem,) = problems(tmp_path, text)
    return problem


def loaded(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return load_recipe(str(path))


def test_a_recipe_is_read_with_short_names_and_defaults(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, GOOD)
    assert recipe.name == "recipe"
    assert recipe.world_size == 16
    assert recipe.parallelism.tensor_model_parallel_size == 2
    assert recipe.data_parallel_size == 8
    assert recipe.memory_limit_gib == 79.18
    assert recipe.knob("recompute_modules") == ("moe_act", "layernorm")
    assert recipe.knob("moe_token_dispatcher_type") == "alltoall"


@pytest.mark.parametrize("name", packaged_examples())
def test_a_packaged_example_is_read_by_its_name(name: str) -> None:
    assert load_recipe(name).name


def test_all_problems_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "model: qwen3-30b-a3d\n"
        "cluster: {gpu: h1000, nodes: -2}\n"
        "training:\n  seq_lenght: 4096\n  micro_batch_size: '8'\n"
        "knobs:\n  moe_grouped_gem: true\n  recompute_granularity: ful\n  micro_batch_size: 4\n"
        "tune: {allow: training-equivelent, freeze: [gobal_batch_size]}\n",
    )
    said = [(p.where.split("recipe.yaml:")[1], p.hint) for p in found]
    assert said == [
        ("1 model", "did you mean qwen3-30b-a3b?"),
        ("2 cluster.gpu", "did you mean h100?"),
        ("2 cluster.nodes", "write a number greater than 0"),
        ("4 training.seq_lenght", "did you mean seq_length?"),
        ("5 training.micro_batch_size", "YAML reads 8 as text here; write 8, without quotes or exponent"),
        ("7 knobs.moe_grouped_gem", "did you mean moe_grouped_gemm?"),
        ("8 knobs.recompute_granularity", "did you mean full?"),
        ("9 knobs.micro_batch_size", "move it to training"),
        ("10 tune.freeze", "did you mean global_batch_size?"),
        ("10 tune.allow", "did you mean training-equivalent?"),
    ]


def test_a_small_number_that_yaml_reads_as_text_is_shown_as_yaml_takes_it(tmp_path: Path) -> None:
    found = problems(tmp_path, "model: qwen3-30b-a3b\ncluster: {gpu: h100}\ntune: {planned_gpu_hours: 1e-16}\n")
    assert [problem.hint for problem in found] == ["YAML reads 1e-16 as text here; write 1.0e-16, without quotes"]


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("", "the file is empty", "moe-autotune init"),
        ("# only a comment\n", "the file is empty", "moe-autotune init"),
        ("just words", "it has no keys", "mapping"),
        ("- a\n- b\n", "it has no keys", "mapping"),
        ("cluster: {gpu: cpu}\n", "missing", "preset"),
        ("model: qwen3-30b-a3b\n", "missing", "cluster: {gpu"),
        ("model: 7\ncluster: {gpu: cpu}\n", "expected", "write"),
        ("model: {num_layers: 4}\ncluster: {gpu: cpu}\n", "missing", "write hidden_size under model"),
        ("model: qwen3-30b-a3b\ncluster: cpu\n", "expected a mapping", "write"),
        ("model: qwen3-30b-a3b\ncluster: {gpu: cpu}\nparallelism: {tp: true}\n", "expected a whole number", "write"),
        ("model: qwen3-30b-a3b\ncluster: {gpu: cpu}\nparallelism: {tpp: 1}\n", "unknown key", "did you mean"),
        ("model: qwen3-30b-a3b\ncluster: {gpu: cpu}\ntp: 2\n", "unknown key", "move it to parallelism"),
        ("model: qwen3-30b-a3b\ncluster: {gpu: cpu}\nnodes: 2\n", "unknown key", "move it to cluster"),
        ("model: qwen3-30b-a3b\ncluster: {gpu: cpu}\nknobs: {ep: 2}\n", "no such knob", "move it to parallelism"),
        ("model: qwen3-30b-a3b\ncluster: {gpu: cpu}\nburst: {deadline_s: 1e3}\n", "expected a number", "write 1000"),
        (
            "model: qwen3-30b-a3b\ncluster: {gpu: cpu}\nparallelism: {tp: 2, tensor_model_parallel_size: 2}\n",
            "also written as",
            "keep one",
        ),
        ("model: a\nmodel: b\n", "written twice, first on line 1", "keep one"),
    ],
)
def test_one_problem_says_what_and_what_to_do(tmp_path: Path, text: str, what: str, hint: str) -> None:
    found = [p for p in problems(tmp_path, text) if what in p.what]
    assert found
    assert hint in found[0].hint


def test_text_that_is_not_yaml_names_its_line(tmp_path: Path) -> None:
    problem = only(tmp_path, "model: qwen3-30b-a3b\ncluster: {gpu: cpu\nknobs: [\n")
    assert "it is not YAML" in problem.what
    assert "recipe.yaml:" in problem.where


@pytest.mark.parametrize("data", [b"\x7fELF\x00\x01\xff\xfe", b"model: a\x00b", b"\x1f\x8b\x08\x00garbage", b"a: \x01"])
def test_a_binary_file_is_refused(tmp_path: Path, data: bytes) -> None:
    assert "not" in only(tmp_path, data).what


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "base_recipe.yaml").write_text(GOOD)
    with pytest.raises(BadInputError, match=r"did you mean .*base_recipe\.yaml"):
        load_recipe(str(tmp_path / "base_recpie.yaml"))
    with pytest.raises(BadInputError, match="did you mean cpu-moe"):
        load_recipe("cpu-mo")


def test_a_section_that_is_no_mapping_is_refused_in_plain_words(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "model: qwen3-30b-a3b\ncluster: []\n")
    assert (found.what, found.hint) == ("expected a mapping of keys, got []", "write a mapping of keys")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"^[^:]+: it is a directory"):
        load_recipe(str(tmp_path))


def test_a_key_that_is_not_text_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, "model: qwen3-30b-a3b\ncluster: {gpu: cpu}\nknobs: {1: 2}\n3: 4\n")


@pytest.mark.parametrize("section", ["training", "parallelism", "knobs", "burst", "tune"])
def test_an_empty_section_means_its_defaults(tmp_path: Path, section: str) -> None:
    assert loaded(tmp_path, f"model: qwen3-30b-a3b\ncluster:\n  gpu: h100\n{section}:\n")


BOMB = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 40))
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GOOD + BOMB, "aliases expand to more values"),
        (GOOD + MERGED, "aliases expand to more values"),
        ("model: &m\n  inner: *m\ncluster: {gpu: h100}\n", "nested too deeply to be read, or an alias contains itself"),
        ("model: " + "[" * 1000 + "]" * 1000 + "\n", "nested too deeply"),
        (GOOD + "#" * 2**20, "larger than 1 MiB"),
    ],
    ids=["aliases", "merges", "an alias that holds itself", "deep", "large"],
)
def test_text_that_would_be_read_without_end_is_refused(tmp_path: Path, text: str, why: str) -> None:
    assert why in only(tmp_path, text).what


def test_what_is_no_regular_file_is_refused_before_a_byte_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for named in (tmp_path / "pipe.yaml", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(BadInputError, match="it is not a regular file"):
            load_recipe(str(named))


@pytest.mark.parametrize("key", ["model: %s.json", "model: qwen3-30b-a3b\nburst: {engine: simulated, machine: %s}"])
def test_files_that_a_recipe_names_are_regular_ones_too(tmp_path: Path, key: str) -> None:
    for name in ("pipe", "pipe.json"):
        os.mkfifo(tmp_path / name)
    (found,) = problems(tmp_path, key % "pipe" + "\ncluster: {gpu: h100}\n")
    assert "it is not a regular file" in found.what
    assert "pipe" in found.where


def test_a_trainers_version_that_cannot_be_read_is_refused_where_it_stands(tmp_path: Path) -> None:
    text = "model: qwen3-30b-a3b\ncluster: {gpu: h100}\ntrainer:\n  kind: KIND\n  version: banana\n  command: [t.py]\n"
    for kind in ("megatron-lm", "megatron-bridge", "custom"):
        file = tmp_path / "r.yaml"
        file.write_text(text.replace("KIND", kind))
        with pytest.raises(BadInputError) as refused:
            load_recipe(str(file))
        (problem,) = refused.value.problems
        assert problem.where == f"{file}:5 trainer.version"
        assert problem.what == "'banana' is not a version"
        assert "0.16.1" in problem.hint
    file.write_text(text.replace("KIND", "custom").replace("banana", "core_v0.17.0"))
    assert load_recipe(str(file)).trainer is not None


NODES = GOOD.replace("nodes: 2", "nodes: %s")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NODES % (10**18), "less than or equal to 1048576"),
        (NODES % "1000000, gpus_per_node: 1000000", "more than 1,048,576 GPUs in all"),
        (NODES % "2, memory_gib: .inf", "a finite number"),
        (GOOD + "training: {global_batch_size: 1000000000000000003}\n", "less than or equal to 10000000"),
        (GOOD + "training: {seq_length: 1000000000000}\n", "less than or equal to 1073741824"),
        (GOOD + "burst: {measure_steps: 1000000000000}\n", "less than or equal to 100000"),
        (GOOD.replace("{tp: 2", "{tp: 1000000000000"), "less than or equal to 1048576"),
        ("model: {num_layers: 1000000000}\ncluster: {gpu: h100}\n", "less than or equal to 10000"),
        (GOOD + "tune: {freeze: abc}\n", "expected a list: [a, b]"),
        (GOOD + "trainer: {command: []}\n", "it is empty"),
        ("name: 12\n" + GOOD, "expected text"),
    ],
)
def test_numbers_beyond_any_cluster_and_values_of_a_wrong_kind_are_refused_in_plain_words(
    tmp_path: Path, text: str, said: str
) -> None:
    """Trying every way in which such a number divides would take too long."""
    assert any(said in problem.what for problem in problems(tmp_path, text))


def test_a_layout_that_would_fill_the_memory_is_called_one_that_cannot_be_read(tmp_path: Path) -> None:
    bomb = "E((((t*9999)*9999)*9999)*9999)*9999|L"
    recipe = loaded(tmp_path, GOOD + f"  pipeline_model_parallel_layout: '{bomb}'\n")
    with pytest.raises(ValueError, match="no model has so many layers"):
        pipeline_stages(bomb)
    assert "layout-text" in {finding.rule for finding in check(recipe)}


def test_no_guess_is_made_for_a_name_unlike_all_others(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("model: x")
    with pytest.raises(BadInputError) as caught:
        load_recipe(str(tmp_path / "qwen3-30b-a3b-16xh100"))
    assert "did you mean" not in str(caught.value)
    assert "there are b.yaml" in str(caught.value)
