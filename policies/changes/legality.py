"""Makes a recipe from knob changes, or gives the reason why the policy may not propose it.

Refuses frozen knobs, knobs whose effect on training exceeds what the recipe allows, and recipes that `trainer.legality`
calls an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.errors import BadInputError
from trainer.legality import findings_of_moved
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS, NUMERICS, Numerics
from trainer.recipe.rules import Finding, FindingKind


@dataclass(frozen=True, kw_only=True)
class Refusal:
    reason: str


def derive(recipe: Recipe, changes: dict[str, Any]) -> Recipe | Refusal:
    """Returns the recipe with these changes, or why it is refused. Knobs that keep their value do not count as
    changed."""
    moved = {knob: value for knob, value in changes.items() if recipe.knob(knob) != value}
    if not moved:
        return Refusal(reason="the recipe has it already")
    for objection in (_frozen(recipe, moved), _too_much(recipe, moved)):
        if objection:
            return Refusal(reason=objection)
    try:
        derived = recipe.replace(moved)
    except BadInputError as error:
        return Refusal(reason=error.problems[0].what if error.problems else str(error))
    findings = findings_of_moved(recipe, derived, moved)
    refusing = [finding for finding in findings if finding.kind is FindingKind.ERROR] or _reset(recipe, moved, findings)
    return Refusal(reason=refusing[0].message) if refusing else derived


def numerics_of(changes: dict[str, Any]) -> Numerics:
    """Returns the strongest label among the changed knobs: `NUMERICS` is ordered from least to most."""
    labels = [KNOBS[knob].numerics for knob in changes]
    return max(labels, key=NUMERICS.index, default=NUMERICS[0])


def _reset(recipe: Recipe, moved: dict[str, Any], findings: list[Finding]) -> list[Finding]:
    """Returns the findings by which Megatron itself resets every moved knob to its old value; [] if any knob keeps its
    new one."""
    autoset = [finding for finding in findings if finding.kind is FindingKind.AUTOSET]
    back = {knob for each in autoset for knob, value in each.suggestion.items() if value == recipe.knob(knob)}
    return autoset if set(moved) <= back else []


def _frozen(recipe: Recipe, moved: dict[str, Any]) -> str | None:
    frozen = sorted(set(moved) & set(recipe.tune.freeze))
    return f"{', '.join(frozen)} is frozen by the recipe (tune.freeze)" if frozen else None


def _too_much(recipe: Recipe, moved: dict[str, Any]) -> str | None:
    label = numerics_of(moved)
    if NUMERICS.index(label) <= NUMERICS.index(recipe.tune.allow):
        return None
    return f"it is {label}, and the recipe allows {recipe.tune.allow} changes (tune.allow)"
