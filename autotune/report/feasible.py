"""The section of a study in which nothing ran: changes that would make the recipe fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache

from autotune.diagnose.next_steps import nodes_needed, nodes_words
from autotune.looks.quantities import changes_text
from autotune.report.material import Material, Section
from policies.trial import Status
from trainer.estimate.plan.choices import choices
from trainer.estimate.plan.search import search
from trainer.recipe import Recipe


def feasible(material: Material) -> Section | None:
    """Returns the section; None if a recipe runs, the study has not ended, or no trial ran out of memory."""
    study = material.history.study
    ended = material.history.ended is not None
    no_room = any(trial.status is Status.OOM for trial in material.trials)
    if study is None or not ended or not no_room or material.history.best is not None:
        return None
    paragraphs = _paragraphs(json.dumps(study.recipe))
    return Section(key="next", title="What to try next", paragraphs=paragraphs) if paragraphs else None


@lru_cache(maxsize=1)  # the search takes seconds, and a report in three formats has the same section several times
def _paragraphs(recipe: str) -> tuple[str, ...]:
    return tuple(_advice(Recipe.model_validate_json(recipe)))


def _advice(recipe: Recipe) -> Iterator[str]:
    """Yields the paragraphs: what to change in a recipe of which nothing that was tried fits."""
    if recipe.hardware.is_cpu or recipe.memory_limit_gib is None:
        yield "Raise cluster.memory_gib or add ranks: no setting that was tried fits its memory."
        return
    nodes = nodes_needed(recipe)
    if nodes is not None:
        yield nodes_words(recipe, nodes)
        yield "Set cluster.nodes to that, and `moe-autotune plan` ranks the settings."
        return
    first = next(iter(choices(search(recipe), 1)), None)
    if first is not None and first.fits:
        yield (
            f"By estimate this fits, with {first.needs_gib:.1f} of {recipe.memory_limit_gib:.1f} GiB: "
            f"{changes_text(recipe.diff(first.recipe))}. `moe-autotune plan` lists more."
        )
