"""Lists the recipes whose exports are checked with the real trainers: the denominator of every figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from autotune.init.starter import starter
from benchmarks.places import DATA, data_file
from tests.trainer.recipe.tuned_recipes import recipe_of_row
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.layout import layout_of
from trainer.recipe.load import packaged_examples, recipe_from
from trainer.recipe.models import presets
from trainer.recipe.source import parse_source


@dataclass(frozen=True, kw_only=True)
class LazyRecipe:
    """A recipe to export, made when it is first asked for. `origin`: table, example or starter."""

    origin: str
    make: Callable[[], Recipe]

    @cached_property
    def recipe(self) -> Recipe:
        return self.make()


def asked(facts: Path = DATA) -> list[LazyRecipe]:
    """Returns every recipe of NVIDIA's table, the packaged examples, and a starter recipe for every preset."""
    return [*_table(facts), *_examples(), *_starters()]


def _table(facts: Path) -> Iterator[LazyRecipe]:
    rows = json.loads(data_file("tuned_recipes.json", folder=facts).read_text(encoding="utf-8"))
    return (LazyRecipe(origin="table", make=partial(_with_unrecorded, row)) for row in rows)


def _with_unrecorded(row: dict[str, Any]) -> Recipe:
    """Returns a row's recipe, with overlap_p2p_comm for interleaved pipelines, as Megatron-Bridge does
    (src/megatron/bridge/training/comm_overlap.py:456); the table has no column for it."""
    recipe = recipe_of_row(row)
    interleaved = layout_of(recipe).vpp > 1 and recipe.parallelism.pipeline_model_parallel_size > 1
    return recipe.replace({"overlap_p2p_comm": True}) if interleaved else recipe


def _examples() -> Iterator[LazyRecipe]:
    return (LazyRecipe(origin="example", make=partial(load_recipe, name)) for name in packaged_examples())


def _starters() -> Iterator[LazyRecipe]:
    """Yields a starter recipe for every preset on one node of H100, and for the default preset on other GPUs."""
    default = "qwen3-30b-a3b"
    wanted = [(model, "h100") for model in presets()] + [(default, gpu) for gpu in ("cpu", "b200", "gb200")]
    return (LazyRecipe(origin="starter", make=partial(_starter, model, gpu)) for model, gpu in wanted)


def _starter(model: str, gpu: str) -> Recipe:
    text = starter(model=model, gpu=gpu, gpus=4 if gpu in ("cpu", "gb200") else 8).text
    return recipe_from(parse_source(text, name=f"{model}-{gpu}"))
