"""A waterfall from a measured step down to what is attainable: levels, and the gaps between them, which add up exactly.

Levels are in the time of one step of the user's: as measured, the estimate of the user's recipe, a reference (a
published run or another run of the user's), `plan`'s first choice, and the peak of the GPUs. Where the reference was
measured, estimates are scaled by its measured over its estimated time, so that errors which both recipes share cancel.
Shapes: K sets of constants; the first is the table's, each further one has a constant moved by its standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from trainer.estimate.candidates import Floats
from trainer.estimate.gap.attribution import attributed
from trainer.estimate.gap.costs import Costs
from trainer.estimate.gap.parts import Traced, by_cause
from trainer.model.flops import model_flops_per_token
from trainer.recipe.schema import Recipe

NONE_S = 1e-9
WORK = ("seq_length", "global_batch_size")


class Kind(StrEnum):
    """What a gap is made of."""

    PART = "part"  # a measured part of the step against the expected one
    UNEXPLAINED = "unexplained"
    SETTING = "setting"
    WORK = "work"  # length of sequences, size of the batch
    CLUSTER = "cluster"  # number of GPUs, links between them
    MODEL = "model"  # details of the same model: MTP, windows
    SOFTWARE = "software"


class LevelName(StrEnum):
    MEASURED = "measured"
    OWN = "own_estimate"
    REFERENCE = "reference"
    PLAN = "plan"
    PEAK = "peak"
    COMPUTE = "compute"  # of a trace without a recipe: what is left


@dataclass(frozen=True, kw_only=True)
class Change:
    """Knobs that move together: name → (here, there)."""

    name: str
    knobs: Mapping[str, tuple[Any, Any]]

    @property
    def target(self) -> dict[str, Any]:
        return {name: there for name, (_, there) in self.knobs.items()}

    @property
    def kind(self) -> Kind:
        return Kind.WORK if set(self.knobs) <= set(WORK) else Kind.SETTING


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Seconds with a standard deviation."""

    s: float
    deviation_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Gap:
    """One step of the waterfall: positive seconds are lost against the reference.

    `seen_s`, `expected_s`: of a part; `moved_by`: the changes that move it, and what each takes from it. `alone`: what the change saves as the only one. `helps`: the change with which it
    saves most more or less than apart, and how much.
    """

    kind: Kind
    name: str
    time: Interval
    knobs: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    seen_s: float | None = None
    expected_s: float | None = None
    moved_by: Mapping[str, float] = field(default_factory=dict)
    alone: Interval | None = None
    helps: tuple[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Level:
    name: LevelName
    time: Interval


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measured step, seconds; `deviation` is relative."""

    step_s: float
    deviation: float
    traced: Traced | None = None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A measured run that the recipe is compared with. `release`: a row of software.csv, None if it is not known."""

    recipe: Recipe
    tokens_per_s_per_gpu: float
    release: str | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """All that a waterfall is made of. `target`: the recipe that settings are compared with, on the user's cluster;
    `changes` lead to it.

    `anchored`: estimates are scaled to the reference, or without one to the measured step (`scaled_to_own`).
    `residual`: relative standard deviation of an estimate whose constants are right.
    """

    own: Recipe
    release: str | None
    measured: Measured | None
    reference: Reference | None
    changes: Sequence[Change]
    planned: Recipe | None
    constants: Mapping[str, Floats]
    residual: float
    scaled_to_own: bool = False


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """`levels` from the highest; `gaps` in order from the first level to the reference, or to `plan` without one."""

    levels: tuple[Level, ...]
    gaps: tuple[Gap, ...]
    scale: float  # of estimates

    def level(self, name: LevelName) -> Level | None:
        return next((level for level in self.levels if level.name is name), None)


def waterfall(question: Question) -> Waterfall:
    """Returns the waterfall of a question. Gaps add up to the first level minus the one that they lead to."""
    costs = Costs(own=question.own, constants=question.constants)
    own = costs.of(question.own, release=question.release)
    scale = _scale(question, costs, own)
    gaps = [
        *_measured_gaps(question, scale * own, scale),
        *_setting_gaps(question, costs, scale),
        *_reference_gaps(question, costs, scale),
    ]
    return Waterfall(levels=tuple(_levels(question, costs, own, scale)), gaps=tuple(gaps), scale=float(scale[0]))


def _scale(question: Question, costs: Costs, own: Floats) -> Floats:
    """Returns what estimates are multiplied by, [K]."""
    if question.reference is not None:
        there = costs.of(question.reference.recipe, release=question.reference.release)
        return costs.at_rate(question.reference.tokens_per_s_per_gpu) / there
    if question.scaled_to_own and question.measured is not None:
        return question.measured.step_s / own
    return np.ones(len(own))


def _levels(question: Question, costs: Costs, own: Floats, scale: Floats) -> list[Level]:
    found = []
    if question.measured is not None:
        step_s = question.measured.step_s
        found.append(
            Level(
                name=LevelName.MEASURED, time=Interval(s=step_s, deviation_s=question.measured.deviation * step_s)
            )
        )
    found.append(Level(name=LevelName.OWN, time=_estimated(scale * own, question.residual)))
    if question.reference is not None:
        rate = question.reference.tokens_per_s_per_gpu
        found.append(Level(name=LevelName.REFERENCE, time=Interval(s=costs.at_rate(rate))))
    if question.planned is not None:
        planned = costs.of(question.planned, release=question.release)
        found.append(Level(name=LevelName.PLAN, time=_estimated(scale * planned, question.residual)))
    if question.own.peak_tflops:
        found.append(Level(name=LevelName.PEAK, time=Interval(s=_at_peak_s(question.own, costs.tokens_per_gpu))))
    return found


def _at_peak_s(recipe: Recipe, tokens_per_gpu: float) -> float:
    flops = model_flops_per_token(recipe.architecture, recipe.training.seq_length)
    return tokens_per_gpu * flops / ((recipe.peak_tflops or math.inf) * 1e12)


def _measured_gaps(question: Question, expected: Floats, scale: Floats) -> list[Gap]:
    """Returns the gaps between the measured step and the estimate of its recipe: by part where it was traced."""
    measured = question.measured
    if measured is None or question.scaled_to_own:
        return []
    off_s = math.hypot(measured.deviation * measured.step_s, question.residual * float(expected[0]))
    rest = measured.step_s - expected
    if measured.traced is None:
        return [_gap(Kind.UNEXPLAINED, "unexplained", rest, more_s=off_s)]
    found, left = [], rest
    for each in by_cause(measured.traced):
        lost = each.seen_s - scale * each.expected_s
        left = left - lost
        found.append(
            Gap(
                kind=Kind.PART,
                name=each.cause,
                time=_interval(lost, more_s=float(scale[0]) * each.deviation_s),
                seen_s=each.seen_s,
                expected_s=float(scale[0] * each.expected_s[0]),
                moved_by={name: float(scale[0]) * s for name, s in each.moved_by.items()},
            )
        )
    return [*found, _gap(Kind.UNEXPLAINED, "unexplained", left, more_s=measured.deviation * measured.step_s)]


def _setting_gaps(question: Question, costs: Costs, scale: Floats) -> list[Gap]:
    changes = question.changes
    if not changes:
        return []
    targets = [change.target for change in changes]
    found = attributed(
        lambda made: scale[:, None] * costs.of_subsets(targets, made, release=question.release), len(changes)
    )
    return [
        Gap(
            kind=change.kind,
            name=change.name,
            time=_interval(found.shares[:, at]),
            knobs=change.knobs,
            alone=_interval(found.alone[:, at]),
            helps=_partner(found.together[at], changes),
        )
        for at, change in enumerate(changes)
    ]


def _partner(together: Floats, changes: Sequence[Change]) -> tuple[str, float] | None:
    at = int(np.argmax(np.abs(together)))
    return None if abs(together[at]) < NONE_S else (changes[at].name, float(together[at]))


def _reference_gaps(question: Question, costs: Costs, scale: Floats) -> list[Gap]:
    """Returns the gaps between the target on the user's cluster and the reference on its own."""
    reference = question.reference
    if reference is None:
        return []
    every = np.ones((1, len(question.changes)), dtype=bool)
    targets = [change.target for change in question.changes]
    target = scale * costs.of_subsets(targets, every, release=question.release)[:, 0]
    model = reference.recipe.model_copy(update={"model": question.own.model})
    alike, there, then = (
        scale * costs.of(recipe, release=release)
        for recipe, release in (
            (model, question.release),
            (reference.recipe, question.release),
            (reference.recipe, reference.release),
        )
    )
    found = [
        _gap(Kind.CLUSTER, "cluster", target - alike),
        _gap(Kind.MODEL, "model", alike - there),
        _gap(Kind.SOFTWARE, "software", there - then),
    ]
    return [gap for gap in found if abs(gap.time.s) > NONE_S]


def _gap(kind: Kind, name: str, lost: Floats, *, more_s: float = 0.0) -> Gap:
    return Gap(kind=kind, name=name, time=_interval(lost, more_s=more_s))


def _interval(values: Floats, *, more_s: float = 0.0) -> Interval:
    return Interval(s=float(values[0]), deviation_s=math.hypot(float(np.linalg.norm(values[1:] - values[0])), more_s))


def _estimated(values: Floats, residual: float) -> Interval:
    return _interval(values, more_s=residual * float(values[0]))
