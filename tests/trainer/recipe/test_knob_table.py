"""Every row of the knob table, and against the installed Megatron-Core where it names a field."""

import ast
from importlib.metadata import version
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import pytest
from packaging.version import Version

from tests.rows import for_every_row
from trainer.recipe.knobs import KNOBS, NUMERICS, Knob, parse_domain
from trainer.recipe.sections import Parallelism, Training

every_knob = for_every_row(KNOBS.values(), name=attrgetter("name"))
CONFIGS = (
    ("megatron/core/model_parallel_config.py", "ModelParallelConfig"),
    ("megatron/core/transformer/transformer_config.py", "TransformerConfig"),
    ("megatron/core/transformer/transformer_config.py", "MLATransformerConfig"),
    ("megatron/core/distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"),
    ("megatron/core/optimizer/optimizer_config.py", "OptimizerConfig"),
)


@pytest.fixture(scope="module")
def core_fields() -> dict[str, str]:
    """Returns the default of every config field of the installed release as source text; empty for none or a call.

    The files are read: importing them takes 8 s.
    """
    spec = find_spec("megatron.core")
    if spec is None or spec.origin is None:
        pytest.skip("megatron-core is not installed")
    root = Path(spec.origin).parents[2]
    fields: dict[str, str] = {}
    for path, name in CONFIGS:
        tree = ast.parse((root / path).read_text())
        config = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        for node in config.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                called = isinstance(node.value, ast.Call)
                fields[node.target.id] = ast.unparse(node.value) if node.value and not called else ""
    return fields


@every_knob
def test_a_row_is_filled_in(knob: Knob) -> None:
    assert knob.section in ("training", "parallelism", "knobs")
    assert knob.acts in ("model", "ddp", "optimizer", "parallelism", "training", "environment", "process")
    assert knob.phase in ("fit", "scale", "profile", "retune")
    assert knob.numerics in NUMERICS
    assert knob.default_from in ("megatron", "ours")
    assert set(knob.walls) <= {"memory", "communication", "host", "compute"}
    assert knob.walls
    assert knob.megatron_lm is None or knob.megatron_lm.startswith("--")


@every_knob
def test_the_default_is_a_value_the_knob_takes(knob: Knob) -> None:
    assert knob.domain.problem(knob.default) is None


@for_every_row([knob for knob in KNOBS.values() if knob.megatron_core is not None], name=attrgetter("name"))
def test_the_core_field_exists_in_the_installed_release_or_says_since_when(
    knob: Knob, core_fields: dict[str, str]
) -> None:
    has_it = knob.since is None or Version(version("megatron-core")) >= Version(knob.since)
    assert (knob.megatron_core in core_fields) == has_it


@for_every_row([knob for knob in KNOBS.values() if knob.default_from == "megatron"], name=attrgetter("name"))
def test_a_default_called_megatrons_is_the_installed_one(knob: Knob, core_fields: dict[str, str]) -> None:
    written = core_fields.get(knob.megatron_core or "")
    alike = not written or knob.domain.kind == "any"  # lists: null here, an empty or catch-all spelling there
    assert alike or knob.default == _value(written or "")


def _value(written: str) -> object:
    """Returns the default that a source text means, such as "1024 * 1024"."""
    if written.startswith("torch."):
        return written.removeprefix("torch.")
    return eval(compile(ast.parse(written, mode="eval"), "default", "eval"), {"__builtins__": {}})


def test_the_sections_hold_exactly_their_knobs_with_the_same_defaults() -> None:
    for section in (Training(), Parallelism()):
        name = type(section).__name__.lower()
        rows = {row.name: row.default for row in KNOBS.values() if row.section == name}
        assert rows == section.model_dump()


@pytest.mark.parametrize(
    ("cell", "good", "bad"),
    [
        ("bool", [True, False], [None, 1, "true"]),
        ("int>=1", [1, 64], [0, -1, 1.5, True, "8", None]),
        ("int 0..1?", [0, 1, None], [2]),
        ("float 0..1", [0, 0.5, 1.0], [1.1, -0.1, True]),
        ("one a|b", ["a"], ["c", None, ("a",)]),
        ("any a|b?", [(), ("a", "b"), None], [("c",), "a"]),
        ("text?", ["anything", None], [3]),
        ("sizes>=1?", [(8, 2), (4,), None], [(), (0, 2), (1.5,), ("8",), (True,), 8]),
    ],
)
def test_a_domain_takes_its_values_and_no_others(cell: str, good: list[object], bad: list[object]) -> None:
    domain = parse_domain(cell)
    assert [domain.problem(value) for value in good] == [None] * len(good)
    assert all(domain.problem(value) for value in bad)


def test_a_cell_that_is_no_domain_is_refused() -> None:
    with pytest.raises(ValueError, match="no domain"):
        parse_domain("integer")


def test_listed_values_are_offered_null_last() -> None:
    assert KNOBS["recompute_granularity"].values == ("selective", "full", None)
    assert KNOBS["sequence_parallel"].values == (False, True)
    assert KNOBS["micro_batch_size"].values is None
