"""The JSON document of a bisection: the differences of two recipes, the verdict on each, and the bursts behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from autotune.bisect.loop import Problem
from autotune.bisect.measure import Measure
from autotune.tuning.history import History
from policies.bisect.differences import Difference, ends_of
from policies.bisect.guilt import Predicted
from policies.bisect.question import Effect, Observation, Subset, Verdict
from policies.noise import Noise
from policies.trial import Z_90, Trial
from trainer.recipe import Recipe
from trainer.values import knob_value

Answered = Literal["culprits", "no difference", "undecided", "a fails"]


class Time(msgspec.Struct, frozen=True, kw_only=True):
    """A change of time per token as a fraction (0.12: 12 % more), with its 90 % interval."""

    change: float
    low: float
    high: float


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between recipes A and B.

    `changes`: knob or other field → [value in A, value in B]; `guilt`: prior probability of being a culprit, before any
    burst.
    """

    name: str
    changes: dict[str, tuple[Any, Any]]
    predicted: Time
    guilt: float


class EffectEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Differences with an effect; several act only together. `time` is None for a failure."""

    differences: list[str]
    time: Time | None


class AlternativeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A set of culprits that the bursts do not rule out."""

    differences: list[str]
    probability: float


class BurstEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One burst.

    `taken`: the differences set as in B; `time`: change of its time per token against A's first burst, as a fraction
    (by the measure of the bisection; `wall_time`: in wall-clock time), null if it or A failed; `symptom`: how it
    failed.
    """

    burst: int
    trial: int
    taken: list[str]
    time: float | None
    symptom: str | None
    wall_time: float | None = None


class Bisected(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `bisect --json`, and of report.json in the folder of a bisection.

    `total`: B's time per token against A's; `rest`: the part of it by differences that are neither culprits nor helpers
    (`helpers` make B faster); `noise`: relative standard deviation of a burst; `idle`: differences that cannot act on
    these recipes; `symptom`: how B fails, None for a slowdown. `measure`: whether all times are wall-clock time or the
    CPU time of the ranks; `wall_noise`: noise of wall-clock time if they are CPU time.
    """

    schema: int = 1
    study: str
    answered: Answered
    ended: str | None
    symptom: str | None
    probability: float
    culprits: list[EffectEntry]
    helpers: list[EffectEntry]
    others: list[AlternativeEntry]
    total: Time | None
    rest: Time | None
    noise: float | None
    measure: Measure = Measure.WALL
    wall_noise: float | None = None
    differences: list[Changed]
    idle: list[str]
    bursts: list[BurstEntry]
    gpu_hours: float
    simulated: bool


def problem_of(history: History) -> Problem:
    """Returns the bisection problem of a study: its recipes A and B."""
    assert history.study is not None
    assert history.study.other is not None
    a, b = Recipe.model_validate(history.study.recipe), Recipe.model_validate(history.study.other)
    return Problem(ends_of(a, b))


def document_of(history: History, problem: Problem) -> Bisected:
    """Returns the document after the bursts so far."""
    trials = list(history.attempted.values())
    step, measure = problem.step(trials), problem.measure(trials)
    verdict, names = step.verdict, problem.names
    return Bisected(
        study=history.study.name if history.study else "",
        answered=_answered(verdict, trials),
        ended=history.ended.status if history.ended else None,
        symptom=verdict.symptom,
        probability=verdict.probability,
        culprits=[_acting(each, problem) for each in verdict.culprits],
        helpers=[_acting(each, problem) for each in verdict.helpers],
        others=[AlternativeEntry(differences=names(each), probability=chance) for each, chance in verdict.others],
        total=_time(verdict.total),
        rest=_time(verdict.rest) if verdict.culprits else None,
        noise=verdict.deviation,
        measure=measure,
        wall_noise=Noise(trials=trials).between_bursts().deviation if measure is Measure.CPU else None,
        differences=differences_of(problem),
        idle=[each.name for each in problem.ends.idle],
        bursts=list(_ran(trials, problem, measure)),
        gpu_hours=history.gpu_hours,
        simulated=history.simulated,
    )


def differences_of(problem: Problem) -> list[Changed]:
    """Returns the differences by `guilt`, highest first."""
    rows = zip(problem.ends.differences, problem.predicted, problem.question.guilt, strict=True)
    found = [
        Changed(name=each.name, changes=dict(each.changes), predicted=predicted_time(predicted), guilt=guilt)
        for each, predicted, guilt in rows
    ]
    return sorted(found, key=lambda each: -each.guilt)


def values_text(difference: Changed | Difference) -> str:
    """Returns `micro_batch_size 1 → 4, …`."""
    return ", ".join(f"{place} {knob_value(a)} → {knob_value(b)}" for place, (a, b) in difference.changes.items())


def predicted_time(predicted: Predicted) -> Time:
    half = Z_90 * predicted.deviation
    ends = (predicted.log_cost, predicted.log_cost - half, predicted.log_cost + half)
    change, low, high = map(math.expm1, ends)
    return Time(change=change, low=low, high=high)


def _answered(verdict: Verdict, trials: Sequence[Trial]) -> Answered:
    if trials and any(outcome.failure for outcome in trials[0].outcomes):
        return "a fails"
    if not verdict.confident:
        return "undecided"
    return "culprits" if verdict.culprits else "no difference"


def _acting(effect: Effect, problem: Problem) -> EffectEntry:
    return EffectEntry(differences=problem.names(frozenset(effect.members)), time=_time(effect))


def _time(effect: Effect | None) -> Time | None:
    if effect is None or effect.log_cost is None or effect.low is None or effect.high is None:
        return None
    return Time(change=math.expm1(effect.log_cost), low=math.expm1(effect.low), high=math.expm1(effect.high))


def _ran(trials: Sequence[Trial], problem: Problem, measure: Measure) -> Iterator[BurstEntry]:
    """Yields one row per burst, in the order they ran."""
    pairs = sorted((burst, trial.number) for trial in trials for burst in trial.bursts)
    by_measure, by_clock = (problem.seen(trials, each) for each in (measure, Measure.WALL))
    times, wall_times = _over_a(by_measure), _over_a(by_clock)
    for (burst, number), each, time, wall in zip(pairs, by_measure, times, wall_times, strict=True):
        taken = problem.names(each.subset)
        yield BurstEntry(burst=burst, trial=number, taken=taken, time=time, symptom=each.symptom, wall_time=wall)


def _over_a(seen: Sequence[Observation]) -> list[float | None]:
    """Returns the time of each burst over A's first, as a fraction; None where either burst gave no time."""
    first = next((each.log_cost for each in seen if not each.subset and each.log_cost is not None), None)
    costs = (each.log_cost for each in seen)
    return [None if cost is None or first is None else math.expm1(cost - first) for cost in costs]


def fixed_recipe(problem: Problem, document: Bisected) -> Recipe | None:
    """Returns B with the culprits, and every difference that the rules allow only with them, set as in A; None without
    culprits or if that is illegal."""
    guilty = {name for each in document.culprits for name in each.differences}
    everything = problem.question.all
    rest: Subset = frozenset(at for at in everything if problem.ends.differences[at].name not in guilty)
    needed = problem.question.with_needed
    rest = frozenset(at for at in rest if needed(frozenset({at})) <= rest)
    return problem.ends.recipe(rest) if guilty and problem.ends.legal(rest) else None
