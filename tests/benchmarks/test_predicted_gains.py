"""Recorded studies compared with today's predictions."""

from __future__ import annotations

import math

import msgspec
import pytest

from autotune.tuning.events import BurstFinished, Event, Judged, Proposed, StudyStarted
from benchmarks.predicted_gains import ComparedGain, replay, summary
from policies.trial import Phase, Status, Verdict
from tests.policies.drawn import cpu_recipe, outcome
from trainer.recipe import Recipe

BASE = cpu_recipe()
LARGER = cpu_recipe({"micro_batch_size": 4})


def study() -> list[Event]:
    """Returns a base and a larger micro batch, measured twice as fast."""
    started = StudyStarted(
        version="0", name="drawn", recipe=BASE.model_dump(mode="json"), digest=BASE.digest(), seed=1, environment={}
    )
    return [started, *trial(0, BASE, 400_000.0), *trial(1, LARGER, 200_000.0, parent=0)]


def trial(number: int, recipe: Recipe, step_us: float, *, parent: int | None = None) -> list[Event]:
    given = msgspec.structs.replace(outcome(recipe), step_us=[step_us] * 3, cpu_us=[1.8 * step_us] * 3)
    changes = BASE.diff(recipe)
    return [
        Proposed(
            trial=number, recipe=recipe.model_dump(mode="json"), parent=parent, phase=Phase.SCALE, fix="search",
            because="drawn", changes=changes, gain=0.3 if parent is not None else None,
        ),
        BurstFinished(trial=number, burst=number, outcome=given, seconds=1.0, ranks=2),
        Judged(trial=number, status=Status.OK, verdict=Verdict.ACCEPTED, because="drawn"),
    ]  # fmt: skip


def test_a_trial_is_compared_with_a_prediction_from_the_trials_before_it() -> None:
    (held,) = replay("drawn", study())
    assert (held.number, held.accepted) == (1, True)
    assert held.obtained == pytest.approx(math.log(2))
    assert held.then == math.log1p(0.3)
    assert held.low < held.expected < held.high
    more = [*study(), *trial(2, cpu_recipe({"micro_batch_size": 8}), 900_000.0, parent=1)]
    assert next(replay("drawn", more)) == held  # later trials do not change it


def test_the_summary_counts_gains_inside_the_interval_and_says_the_bias() -> None:
    inside = ComparedGain(
        study="a", number=1, accepted=True, changes="", then=None, expected=0.5, low=0.2, high=0.8, obtained=0.4
    )
    beyond = ComparedGain(
        study="a", number=2, accepted=False, changes="", then=None, expected=0.5, low=0.2, high=0.8, obtained=0.1
    )
    assert "1 of 2 inside (50%)" in summary([inside, beyond])
    assert "expected over obtained throughput 1.28" in summary([inside, beyond])
