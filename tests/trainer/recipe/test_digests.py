"""Digests of recipes are kept for good: journals, trials that count as tried, and simulated noise rest on them.

`digests.json` holds recipes with their digests as of 6a0a633. A digest of it never changes: a field or knob that is
added to recipes is left out of the digest at its default (`FIRST_FIELDS` of `trainer.recipe.identity` is closed), a
word that is renamed is read as its successor. A row may be replaced only where a table's fact about its model or GPU
was wrong, because that recipe then is another experiment.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from trainer.recipe import Recipe, architecture, identity, schema
from trainer.recipe.knobs import KNOBS
from trainer.recipe.load import recipe_from
from trainer.recipe.machine import Fault, Host, Machine
from trainer.recipe.sections import BurstSettings, TrainerSettings
from trainer.recipe.source import Source

ROWS = json.loads((Path(__file__).parent / "digests.json").read_text(encoding="utf-8"))
SIMULATED = next(row["recipe"] for row in ROWS if row["what"] == "simulated on a machine of its own")
COMMAND = next(row["recipe"] for row in ROWS if row["what"] == "the user's own Megatron-LM")


def read(data: dict[str, Any]) -> Recipe:
    return recipe_from(Source(name="recipe.yaml", data=data))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"])
def test_a_digest_stays_what_it_was(row: dict[str, Any]) -> None:
    recipe = read(row["recipe"])
    assert recipe.digest() == row["digest"]
    assert Recipe.model_validate(recipe.model_dump(mode="json")).digest() == row["digest"]


def test_the_older_word_for_the_surrogate_is_read_as_the_newer() -> None:
    bare = {"name": "r", "model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 2}}
    older, newer = (read(bare | {"tune": {"sampler": word}}) for word in ("model", "surrogate"))
    assert older == newer == read(bare)
    assert older.tune.sampler == "surrogate"


def with_a_new_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOBS, "new_knob", replace(KNOBS["manual_gc_interval"], name="new_knob", default=5))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"])
def test_a_knob_that_is_new_changes_no_digest_at_its_default(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_new_knob(monkeypatch)
    recipe = read(row["recipe"])
    assert recipe.digest() == row["digest"]
    assert recipe.replace({"new_knob": 5}).digest() == row["digest"]
    assert recipe.replace({"new_knob": 6}).digest() != row["digest"]


class NewHost(Host):
    added: int = 3


class NewFault(Fault):
    added: tuple[str, ...] = ()


class NewMachine(Machine):
    host: NewHost = NewHost()
    faults: tuple[NewFault, ...] = ()
    more: NewHost = NewHost()


class NewTrainer(TrainerSettings):
    added: dict[str, str] = Field(default_factory=dict)


class NewArchitecture(architecture.Architecture):
    added: int | None = None


class NewBurst(BurstSettings):
    machine: NewMachine | None = None


class NewRecipe(schema.Recipe):
    model: NewArchitecture | str
    burst: NewBurst = NewBurst()
    trainer: NewTrainer | None = None


def test_a_field_that_is_new_changes_no_digest_at_its_default() -> None:
    for data in (SIMULATED, COMMAND):
        recipe = read(data)
        plain = recipe.model_dump()
        assert NewRecipe.model_validate(plain).digest() == recipe.digest()
        written = NewRecipe.model_validate(plain | {"model": recipe.architecture.model_dump() | {"added": None}})
        assert written.digest() == recipe.digest()


@pytest.mark.parametrize(
    ("data", "where", "value"),
    [
        (SIMULATED, ("model", "added"), 1),
        (SIMULATED, ("burst", "machine", "host", "added"), 4),
        (SIMULATED, ("burst", "machine", "more", "added"), 4),
        (SIMULATED, ("burst", "machine", "faults", 0, "added"), ("x",)),
        (COMMAND, ("trainer", "added"), {"a": "b"}),
    ],
)
def test_a_field_that_is_new_counts_where_it_is_set(data: dict[str, Any], where: tuple[Any, ...], value: Any) -> None:
    recipe = read(data)
    changed = recipe.model_dump()
    section: Any = changed
    for key in where[:-1]:
        section = section.setdefault(key, {}) if isinstance(section, dict) else section[key]
    section[where[-1]] = value
    assert NewRecipe.model_validate(changed).digest() != recipe.digest()


def test_the_table_of_first_fields_names_none_that_is_gone() -> None:
    known = {f"knobs.{name}" for name in KNOBS} | {
        f"architecture.{name}" for name in architecture.Architecture.model_fields
    }
    named = {name for name in identity.FIRST_FIELDS if name.startswith(("knobs.", "architecture."))}
    assert named <= known
