"""Applies every rule to columns: finds which rows of a table violate it, by the rule's own predicate.

A rule reads few knobs. They are found by recording its reads: its predicate is called once for every distinct
combination of the columns that it reads, and the answer holds for all rows with that combination. New rules therefore
work here without further code, and the result equals that of `trainer.recipe.rules.check` by construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainer.estimate.candidates import Candidates, Flags
from trainer.recipe.rules.check import ERRORS, RULES
from trainer.recipe.rules.releases import NEWEST, is_among, plain_release
from trainer.recipe.rules.rule import LM_AND_BRIDGE, Effect, FindingKind, FrameworkName, Rule
from trainer.recipe.rules.view import View
from trainer.recipe.schema import Recipe
from trainer.recipe.sections import TrainerSettings
from trainer.releases import core_of_bridge

# Kinds of findings that exclude a choice: it does not run, or would silently run as something else.
KINDS = (FindingKind.ERROR, FindingKind.FALLBACK)
BINDING: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.kind in KINDS)
# Rules of recipes that a release starts and then fails with: they exclude a choice unless nothing else fits.
FAILING: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.effect is Effect.FAILS and rule not in BINDING)


def rules_of_plan(recipe: Recipe) -> tuple[Rule, ...]:
    """Returns the rules that a plan of the recipe keeps to. Of FAILING it keeps those of the release of Megatron-Core
    and of the framework that the recipe's trainer names: of the newest release if it names none, of every framework if
    it names neither Megatron-LM nor Megatron-Bridge."""
    return BINDING + tuple(rule for rule in FAILING if _may_meet(rule, recipe.trainer))


def _may_meet(rule: Rule, trainer: TrainerSettings | None) -> bool:
    if trainer is None or trainer.kind not in LM_AND_BRIDGE:
        return is_among(rule.versions, NEWEST)
    release = plain_release(trainer.version or NEWEST)
    if trainer.kind == FrameworkName.MEGATRON_BRIDGE and release != NEWEST:
        release = core_of_bridge(release) or NEWEST
    return bool({FrameworkName.CORE, trainer.kind} & set(rule.binds)) and is_among(rule.versions, release)


def broken(
    candidates: Candidates, *, rules: Sequence[Rule] = ERRORS, undecided: frozenset[str] = frozenset()
) -> tuple[dict[str, Flags], tuple[Rule, ...]]:
    """Returns ({rule id: bool[N]} of the rules that some row violates, the undecided rules).

    A rule that reads a knob of `undecided` cannot be judged yet.
    """
    verdicts: dict[str, Flags] = {}
    left_open: list[Rule] = []
    for rule in rules:
        try:
            verdict = _verdict(rule, candidates, undecided)
        except _UndecidedError:
            left_open.append(rule)
            continue
        if verdict.any():
            verdicts[rule.id] = verdict
    return verdicts, tuple(left_open)


def _verdict(rule: Rule, candidates: Candidates, undecided: frozenset[str]) -> Flags:
    """Returns bool[N]: the rows that violate the rule.

    Columns that the rule reads are found on the way; a new one starts over with finer combinations.
    """
    row = _Row(candidates, undecided)
    view = View(candidates.base, row.knob, row.has)
    while True:
        names = sorted(row.read)
        kinds, rows = candidates.combinations(names)
        answers: list[bool] = []
        for kind in kinds:
            row.values = dict(zip(names, kind, strict=True))
            answers.append(bool(rule.broken(view)))
            if len(row.read) > len(names):
                break
        else:
            return np.array(answers, dtype=bool)[rows]


class _UndecidedError(Exception):
    """A predicate reads a knob whose value is not chosen yet."""


class _Row:
    """One row after another: the base recipe's knobs with `values` of the columns.

    Records which columns are read. A column whose value is not fixed yet answers with the table's first choice, since
    the caller then starts over.
    """

    def __init__(self, candidates: Candidates, undecided: frozenset[str]) -> None:
        self._base, self._columns, self._undecided = candidates.base, candidates.columns, undecided
        self.values: Mapping[str, Any] = {}
        self.read: set[str] = set()

    def knob(self, name: str) -> Any:
        if name in self._undecided:
            raise _UndecidedError
        if name in self._columns:
            self.read.add(name)
            return self.values.get(name, self._columns[name].choices[0])
        return self._base.knob(name)

    def has(self, name: str) -> bool:
        """Returns whether the row sets the knob: every column counts as set, as after `Recipe.replace`."""
        if name in self._undecided:
            raise _UndecidedError
        return name in self._columns or name in self._base.knobs
