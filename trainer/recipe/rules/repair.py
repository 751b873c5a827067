"""Finds the nearest legal recipe: the fewest and smallest knob changes that leave no error and change no frozen knob.

Best-first search over sets of changes, each extended by one repair: the suggestion of a broken rule, or another value
of one of its knobs. The number of checked sets is bounded; beyond it, the suggestions are followed one by one, and
changes that turn out not to be needed are undone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainer.recipe.knobs import KNOBS
from trainer.recipe.layout import layout_of
from trainer.recipe.rules.nearest import LAYOUT, divisors, even_layout
from trainer.recipe.rules.rule import Finding, Rule, Suggestion
from trainer.recipe.schema import Recipe

MAX_CHECKED = 400  # most sets of changes examined: about a third of a second
MAX_STEPS = 24  # most suggestions followed one by one: a recipe that needs more must be fixed by its author
# Weight of a change to training's numerics, relative to a training-equivalent change
NUMERICS_WEIGHT = 3

Errors = Callable[[Recipe], list[Finding]]
Cost = tuple[int, float]


@dataclass(frozen=True, kw_only=True)
class Repair:
    """Search for the nearest legal recipe. `errors` returns the errors of a recipe; `rules` are the rules by id."""

    errors: Errors
    rules: dict[str, Rule]

    def changes(self, recipe: Recipe) -> Suggestion | None:
        """Returns the changes that lead to the nearest legal recipe, {} for a legal one; None if none was found."""
        found = self._best_first(recipe)
        return found if found is not None else self._followed(recipe)

    def _best_first(self, recipe: Recipe) -> Suggestion | None:
        """Searches sets of changes in order of their cost plus a lower bound of the changes still needed; None if none
        of at most MAX_CHECKED sets is legal."""
        start: tuple[Cost, int, Suggestion, list[Finding]] = ((0, 0.0), 0, {}, self.errors(recipe))
        queue, seen = [start], {_key({})}
        while queue and len(seen) <= MAX_CHECKED:
            _, _, changes, errors = heapq.heappop(queue)
            if not errors:
                return changes
            for further in self._further(recipe, changes, errors):
                if (key := _key(further)) not in seen:
                    seen.add(key)
                    left = self.errors(moved(recipe, further))
                    weight, size = cost(recipe, further)
                    heapq.heappush(queue, ((weight + apart(left), size), len(seen), further, left))
        return None

    def _further(self, recipe: Recipe, changes: Suggestion, errors: list[Finding]) -> Iterator[Suggestion]:
        """Yields the changes extended by one repair of any error, without knobs that are back at their old value."""
        here = moved(recipe, changes)
        for error in errors:
            for cure in self._repairs(here, error):
                yield {name: value for name, value in (changes | cure).items() if recipe.knob(name) != value}

    def _repairs(self, recipe: Recipe, error: Finding) -> Iterator[Suggestion]:
        """Yields changes that repair this error, the rule's own suggestion first. No frozen knob changes."""
        rule = self.rules[error.rule]
        if not (error.suggestion or rule.wanted(recipe)):
            return
        if error.suggestion:
            yield error.suggestion
        for name in (name for name in error.knobs if name not in recipe.tune.freeze):
            for value in other_values(recipe, name):
                if not rule.broken(moved(recipe, {name: value})):
                    yield {name: value}

    def _followed(self, recipe: Recipe) -> Suggestion | None:
        """Applies the suggestion of the first error until none is left; undoes changes that turn out not to be
        needed."""
        changes: Suggestion = {}
        for _ in range(MAX_STEPS):
            errors = self.errors(moved(recipe, changes))
            if not errors:
                return self._needed(recipe, changes)
            if not errors[0].suggestion:
                return None
            changes |= errors[0].suggestion
        return None

    def _needed(self, recipe: Recipe, changes: Suggestion) -> Suggestion:
        for name in list(changes):
            without = {other: value for other, value in changes.items() if other != name}
            if recipe.knob(name) == changes[name] or not self.errors(moved(recipe, without)):
                changes = without
        return changes


def _key(changes: Suggestion) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(changes.items(), key=lambda item: item[0]))


def moved(recipe: Recipe, changes: Suggestion) -> Recipe:
    """Returns the recipe with these values, not validated: they come from the knobs' own domains."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        sections.setdefault(KNOBS[name].section, {})[name] = value
    update: dict[str, Any] = {
        section: getattr(recipe, section).model_copy(update=values)
        for section, values in sections.items()
        if section != "knobs"
    }
    if "knobs" in sections:
        update["knobs"] = recipe.knobs | sections["knobs"]
    return recipe.model_copy(update=update)


def cost(recipe: Recipe, changes: Suggestion) -> Cost:
    """Returns (weighted number of changes, their total size).

    Changes of the training's numerics weigh more; size is in factors of two, or one for a word.
    """
    weight = sum(_weight(name) for name in changes)
    return weight, sum(_size(recipe.knob(name), value) for name, value in changes.items())


def _weight(name: str) -> int:
    return 1 if KNOBS[name].numerics == "training-equivalent" else NUMERICS_WEIGHT


def _size(here: Any, there: Any) -> float:
    numbers = [value for value in (here, there) if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) == 2 and min(numbers) > 0:
        return abs(math.log2(there / here))
    if isinstance(here, tuple) and isinstance(there, tuple):
        return float(len(set(here) ^ set(there)))
    return 1.0


def apart(errors: list[Finding]) -> int:
    """Returns the number of errors that share no knob with each other (greedy): a lower bound of the changes that a
    repair needs."""
    taken: set[str] = set()
    number = 0
    for error in sorted(errors, key=lambda error: len(error.knobs)):
        if taken.isdisjoint(error.knobs):
            number += 1
            taken.update(error.knobs)
    return number


def other_values(recipe: Recipe, name: str) -> list[Any]:
    """Returns other values of one knob: every word; a list less one word; an even layout; divisors of the world size or
    the global batch, or the next numbers; null where it is allowed, and the default."""
    knob, here = KNOBS[name], recipe.knob(name)
    values: list[Any] = list(knob.values or ())
    if knob.domain.kind == "any":
        values = [tuple(word for word in here or () if word != dropped) for dropped in here or ()]
    elif name == LAYOUT:
        values = [even_layout(recipe, layout_of(recipe).pp)]
    elif knob.domain.kind == "int":
        values = _numbers(recipe, name)
    unset = [None] if knob.domain.nullable else []
    distinct = dict.fromkeys([*values, *unset, knob.default])
    return [value for value in distinct if value != here and knob.domain.problem(value) is None]


def _numbers(recipe: Recipe, name: str) -> list[int]:
    here = recipe.knob(name) or 1
    if KNOBS[name].section == "parallelism":
        return divisors(recipe.world_size)
    if name in ("micro_batch_size", "global_batch_size", "seq_length"):
        return divisors(recipe.training.global_batch_size) if name == "micro_batch_size" else []
    return [number for number in (here - 1, here + 1) if number > 0]
