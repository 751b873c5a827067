"""Loads a `Recipe` from a file, a packaged example or plain data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trainer.errors import BadInputError, Problem
from trainer.recipe.hugging_face import model_fields, read_config
from trainer.recipe.load_machine import load_machine
from trainer.recipe.schema import Recipe
from trainer.recipe.source import Source, packaged_examples, read_source
from trainer.recipe.validation import validated

__all__ = ["load_recipe", "packaged_examples", "recipe_from"]


def load_recipe(path_or_example: str) -> Recipe:
    """Reads a recipe from a YAML file or a packaged example's name. Raises BadInputError with every problem found."""
    return recipe_from(read_source(path_or_example))


def recipe_from(source: Source) -> Recipe:
    """Builds a recipe from plain data. Raises BadInputError with every problem found."""
    recipe = validated(Recipe, _with_model(_with_machine(source)))
    _refuse_absent_places(recipe, source)
    return recipe


def _refuse_absent_places(recipe: Recipe, source: Source) -> None:
    """Raises BadInputError if the machine file names nodes or ranks that the cluster does not have."""
    machine = recipe.burst.machine
    if machine is None:
        return
    named = [
        *(("stragglers", "node", one.node, recipe.cluster.nodes) for one in machine.stragglers),
        *(("stragglers", "rank", one.rank, recipe.world_size) for one in machine.stragglers),
        *(("faults", "rank", one.rank, recipe.world_size) for one in machine.faults),
    ]
    problems = [
        Problem(
            where=source.where(("burst", "machine")),
            what=f"{key} names {place} {number}, the cluster has {count}",
            hint=f"name one of 0 to {count - 1}, or take it out",
        )
        for key, place, number, count in named
        if number is not None and number >= count
    ]
    if problems:
        raise BadInputError(*problems)


def _with_machine(source: Source) -> Source:
    """Replaces the name of a machine file in the recipe by the file's values."""
    burst = source.data.get("burst")
    named = burst.get("machine") if isinstance(burst, dict) else None
    if not isinstance(named, str):
        return source
    folder = Path(source.name).parent
    machine = load_machine(named, folder=folder, where=source.where(("burst", "machine")))
    read = machine.model_dump(mode="json", exclude_defaults=True)
    return replace(source, data=source.data | {"burst": burst | {"machine": read}})


def _with_model(source: Source) -> Source:
    """Replaces the path of a Hugging Face config.json in the recipe by the model's fields."""
    named = source.data.get("model") if isinstance(source.data, dict) else None
    if not isinstance(named, str) or not named.endswith(".json"):
        return source
    where = source.where(("model",))
    fields = model_fields(read_config(Path(source.name).parent / named, where=where), where=where)
    return replace(source, data=source.data | {"model": fields})
