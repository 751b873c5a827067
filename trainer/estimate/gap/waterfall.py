"""A waterfall from a measured step down to what is attainable: levels, and the gaps between them, which add up exactly.

Levels are in seconds of one step of the user's recipe: as measured, its estimate, a reference (a published run or
another run of the user's), `plan`'s first choice, and the peak of the GPUs. With a reference, estimates are scaled by
its measured over its estimated time, so that errors which both recipes share cancel. Shapes: K sets of constants; the
first is the table's, each further one has a constant moved by its standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from trainer.estimate.candidates import Flags, Floats
from trainer.estimate.gap.attribution import attributed
from trainer.estimate.gap.costs import Costs
from trainer.estimate.gap.parts import Traced, by_cause
from trainer.estimate.time.constants import Constants, constants
from trainer.model.flops import model_flops_per_token
from trainer.recipe.schema import Recipe

NONE_S = 1e-9
MIN_KNOWN = 0.02  # share of the step that is added to a part before its logarithm is taken, as in the surrogate
EFFECT_OFF = 0.3  # relative deviation of an effect: fitted to 120 runs of benchmarks.gap, judged on 60 others
WORK = ("seq_length", "global_batch_size")


class Kind(StrEnum):
    """A kind of gap."""

    PART = "part"  # a measured part of the step against the expected one
    PROBED = "probed"  # constants of one cause for which a probe measured other values
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
    COMPUTE = "compute"  # last level of a trace without a recipe


@dataclass(frozen=True, kw_only=True)
class Change:
    """A setting that differs between the recipe and its target: knobs that move together, name → (here, there)."""

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
    """One step of the waterfall: positive seconds are lost compared with the reference.

    `seen_s`, `expected_s`: of a traced part; `moved_by`: the changes that move it, with the seconds that each removes.
    `alone`: what the change saves if it is the only one. `helps`: another change, and the seconds that both together
    save beyond the sum of each alone (negative if less).
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
    """A measured step in seconds; `deviation` is its relative standard deviation."""

    step_s: float
    deviation: float
    traced: Traced | None = None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A measured run to compare the recipe with. `release`: a row of software.csv, None if it is not known."""

    recipe: Recipe
    tokens_per_s_per_gpu: float
    release: str | None = None


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A probe of the cluster. `names`: the causes with constants for which it measured other values than the tables;
    `constants` returns all constants, with those of the given causes as probed."""

    names: tuple[str, ...]
    constants: Callable[[Sequence[str]], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Question:
    """The input of a waterfall.

    `changes`: the settings that lead from `own` to the reference's recipe, or without a reference to `planned`.
    `scaled_to_own`: without a reference, estimates are scaled to the measured step. `residual`: relative standard
    deviation of an estimate whose constants are right.
    """

    own: Recipe
    release: str | None
    measured: Measured | None
    reference: Reference | None
    changes: Sequence[Change]
    planned: Recipe | None
    constants: Constants
    residual: float
    scaled_to_own: bool = False
    probed: Probed | None = None  # used only if the step was not traced


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """`levels` from the highest to the lowest; `gaps` in order from the first level to the reference, or to `plan`
    without one."""

    levels: tuple[Level, ...]
    gaps: tuple[Gap, ...]
    scale: float  # factor on estimates

    def level(self, name: LevelName) -> Level | None:
        return next((level for level in self.levels if level.name is name), None)


def waterfall(question: Question) -> Waterfall:
    """Returns the waterfall of a question. Its gaps add up to the first level minus the level that they lead to."""
    costs = Costs(own=question.own, constants=question.constants)
    own = costs.of(question.own, release=question.release)
    scale = _scale(question, costs, own)
    priced = _Priced(
        question=question,
        costs=costs,
        scale=scale,
        own=scale * own,
        covariance=_covariance(question, scale * own, scale),
    )
    gaps = [*priced.measured_gaps(), *priced.setting_gaps(), *priced.reference_gaps()]
    return Waterfall(levels=tuple(priced.levels()), gaps=tuple(gaps), scale=float(scale[0]))


def _covariance(question: Question, own: Floats, scale: Floats) -> Floats:
    """Returns the covariance of the constants, in units of their standard deviations, [K-1, K-1].

    Constants are independent a priori; they are conditioned on the step's time, with relative deviation `residual`, and
    on traced parts, with the deviations of those.
    """
    seen = [(np.log(own), question.residual)]
    traced = question.measured.traced if question.measured is not None else None
    for each in by_cause(traced) if traced is not None else ():
        floor = MIN_KNOWN * float(own[0])
        relative = max(each.deviation_s / (float(each.expected_s[0]) + floor), question.residual)
        seen.append((np.log(np.maximum(scale * each.expected_s, 0.0) + floor), relative))
    slopes = np.array([(logs[1:] - logs[0]) / deviation for logs, deviation in seen])
    inside = np.eye(len(slopes)) + slopes @ slopes.T
    found: Floats = np.eye(slopes.shape[1]) - slopes.T @ np.linalg.solve(inside, slopes)
    return found


def _scale(question: Question, costs: Costs, own: Floats) -> Floats:
    """Returns the factor on all estimates, [K]."""
    if question.reference is not None:
        there = costs.of(question.reference.recipe, release=question.reference.release)
        return costs.at_rate(question.reference.tokens_per_s_per_gpu) / there
    if question.scaled_to_own and question.measured is not None:
        return question.measured.step_s / own
    return np.ones(len(own))


def _at_peak_s(recipe: Recipe, tokens_per_gpu: float) -> float:
    flops = model_flops_per_token(recipe.architecture, recipe.training.seq_length)
    return tokens_per_gpu * flops / ((recipe.peak_tflops or math.inf) * 1e12)


def _partner(together: Floats, changes: Sequence[Change]) -> tuple[str, float] | None:
    at = int(np.argmax(np.abs(together)))
    return None if abs(together[at]) < NONE_S else (changes[at].name, float(together[at]))


@dataclass(frozen=True, kw_only=True)
class _Priced:
    """A question with its costs.

    `own` is the scaled estimate of the user's recipe and `scale` the factor on estimates, [K] each.
    """

    question: Question
    costs: Costs
    scale: Floats
    own: Floats
    covariance: Floats

    def levels(self) -> Iterator[Level]:
        question = self.question
        if question.measured is not None:
            step_s = question.measured.step_s
            yield Level(
                name=LevelName.MEASURED, time=Interval(s=step_s, deviation_s=question.measured.deviation * step_s)
            )
        # an estimate that is scaled to the measured step equals it
        if not (question.scaled_to_own and question.measured is not None):
            yield Level(name=LevelName.OWN, time=self._estimated(self.own))
        if question.reference is not None:
            rate = question.reference.tokens_per_s_per_gpu
            yield Level(name=LevelName.REFERENCE, time=Interval(s=self.costs.at_rate(rate)))
        if question.planned is not None:
            planned = self.scale * self.costs.of(question.planned, release=question.release)
            yield Level(name=LevelName.PLAN, time=self._estimated(planned))
        if question.own.peak_tflops:
            yield Level(name=LevelName.PEAK, time=Interval(s=_at_peak_s(question.own, self.costs.tokens_per_gpu)))

    def measured_gaps(self) -> Iterator[Gap]:
        """Yields the gaps between the measured step and the estimate of its recipe, by part if the step was traced."""
        measured, question = self.question.measured, self.question
        if measured is None or question.scaled_to_own:
            return
        off_s = measured.deviation * measured.step_s
        rest = measured.step_s - self.own
        if measured.traced is None:
            off_s = math.hypot(off_s, question.residual * float(self.own[0]))
            for gap in self._probed_gaps():
                rest = rest - gap.time.s
                yield gap
            yield self._gap(Kind.UNEXPLAINED, "unexplained", rest, more_s=off_s)
            return
        for each in by_cause(measured.traced):
            lost = each.seen_s - self.scale * each.expected_s - each.reference_excess_s
            rest = rest - lost
            yield Gap(
                kind=Kind.PART,
                name=each.cause,
                time=self._interval(lost, more_s=float(self.scale[0]) * each.deviation_s),
                seen_s=each.seen_s,
                expected_s=float(self.scale[0] * each.expected_s[0]) + each.reference_excess_s,
                moved_by={name: float(self.scale[0]) * s for name, s in each.moved_by.items()},
            )
        yield self._gap(Kind.UNEXPLAINED, "unexplained", rest, more_s=off_s)

    def _probed_gaps(self) -> Iterator[Gap]:
        """Yields the gaps that follow from constants for which a probe measured other values than the tables, by
        cause."""
        probed, question = self.question.probed, self.question
        if probed is None or not probed.names:
            return
        names, constants_with = probed.names, probed.constants

        def seconds(made: Flags) -> Floats:
            every = [constants_with([name for name, on in zip(names, row, strict=True) if on]) for row in made]
            known = {name: 0.0 for each in every for name in each}
            table = constants()
            sets = {name: np.array([[each.get(name, table[name])] for each in every]) for name in known}
            steps = Costs(own=question.own, constants=sets).of(question.own, release=question.release)
            return -float(self.scale[0]) * np.broadcast_to(steps, (len(made),))[None, :]

        shares = attributed(seconds, len(names)).shares[0]
        for name, share in zip(names, shares.tolist(), strict=True):
            yield Gap(kind=Kind.PROBED, name=name, time=Interval(s=share))

    def setting_gaps(self) -> Iterator[Gap]:
        changes, release = self.question.changes, self.question.release
        if not changes:
            return
        targets = [change.target for change in changes]
        found = attributed(
            lambda made: self.scale[:, None] * self.costs.of_subsets(targets, made, release=release), len(changes)
        )
        for at, change in enumerate(changes):
            yield Gap(
                kind=change.kind,
                name=change.name,
                time=self._effect(found.shares[:, at]),
                knobs=change.knobs,
                alone=self._effect(found.alone[:, at]),
                helps=_partner(found.together[at], changes),
            )

    def reference_gaps(self) -> Iterator[Gap]:
        """Yields the gaps between the target on the user's cluster and the reference on its own."""
        question, reference = self.question, self.question.reference
        if reference is None:
            return
        every = np.ones((1, len(question.changes)), dtype=bool)
        targets = [change.target for change in question.changes]
        target = self.scale * self.costs.of_subsets(targets, every, release=question.release)[:, 0]
        model = reference.recipe.model_copy(update={"model": question.own.model})
        alike, there, then = (
            self.scale * self.costs.of(recipe, release=release)
            for recipe, release in (
                (model, question.release),
                (reference.recipe, question.release),
                (reference.recipe, reference.release),
            )
        )
        for kind, lost in ((Kind.CLUSTER, target - alike), (Kind.MODEL, alike - there), (Kind.SOFTWARE, there - then)):
            if abs(lost[0]) > NONE_S:
                yield self._gap(kind, str(kind), lost)

    def _gap(self, kind: Kind, name: str, lost: Floats, *, more_s: float = 0.0) -> Gap:
        return Gap(kind=kind, name=name, time=self._interval(lost, more_s=more_s))

    def _effect(self, values: Floats) -> Interval:
        """Returns the seconds that a change saves.

        Its deviation includes an error of the estimate's formula, besides its constants.
        """
        return self._interval(values, more_s=EFFECT_OFF * abs(float(values[0])))

    def _estimated(self, values: Floats) -> Interval:
        return self._interval(values, more_s=self.question.residual * float(values[0]))

    def _interval(self, values: Floats, *, more_s: float = 0.0) -> Interval:
        """Returns the first value (that of the table's constants) with the standard deviation that the other sets of
        constants, and an error of `more_s`, give it."""
        moved = values[1:] - values[0]
        variance = float(moved @ self.covariance @ moved)
        return Interval(s=float(values[0]), deviation_s=math.hypot(math.sqrt(max(variance, 0.0)), more_s))
