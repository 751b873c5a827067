"""Pairs of bursts at the end of a search: they narrow the interval of the result, and may reopen the search."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune.tuning.journal import read_study
from policies.trial import Phase, Prediction, Proposal, Trial
from tests.autotune.tuning.fakes import (
    FASTER,
    SLOWER,
    FakeEngine,
    FakePolicy,
    Idea,
    loop_in,
    micro_batches,
    outcome_of,
    trials_in,
)
from trainer.burst import Outcome
from trainer.recipe import Recipe


def test_at_the_end_reference_and_best_are_measured_again_in_turns(tmp_path: Path) -> None:
    engine = FakeEngine(micro_batches)
    loop_in(tmp_path, rule=micro_batches, engine=engine, ideas=[FASTER, SLOWER]).run()
    assert [trial.number for trial in trials_in(tmp_path) if len(trial.outcomes) > 1] == [0, 1]
    assert [burst.recipe.knob("micro_batch_size") for burst in engine.ran] == [1, 4, 4, 1, 4]


def test_the_result_is_made_sure_by_three_pairs_at_most(tmp_path: Path) -> None:
    rng = random.Random(7)

    def drifting(recipe: Recipe) -> Outcome:
        return outcome_of(micro_batches(recipe) * rng.uniform(0.8, 1.2))

    engine = FakeEngine(drifting)
    loop_in(tmp_path, rule=drifting, engine=engine, ideas=[FASTER]).run()
    assert [len(trial.outcomes) for trial in trials_in(tmp_path)] == [1 + 3, 1 + 3]


class Unsure(FakePolicy):
    """Policy that proposes nothing until repeats of the base show the noise between bursts, and then one change."""

    def propose(self, incumbent: Trial, phase: Phase, trials: Sequence[Trial]) -> Proposal | None:
        return (
            super().propose(incumbent, phase, trials) if incumbent.number != 1 or len(incumbent.outcomes) > 1 else None
        )


def test_what_the_last_pairs_make_worth_a_burst_is_tried_and_confirmed(tmp_path: Path) -> None:
    ideas = [Idea(changes={"micro_batch_size": 2}), FASTER]
    loop = loop_in(tmp_path, rule=micro_batches)
    replace(loop, policy=Unsure(ideas)).run()
    history = read_study(tmp_path)
    assert [trial.recipe.knob("micro_batch_size") for trial in history.trials] == [1, 2, 4]
    assert [len(trial.outcomes) for trial in history.trials] == [3, 2, 2]
    assert history.best is not None
    assert history.best.number == 2


def test_no_pair_is_paid_for_beyond_the_budget(tmp_path: Path) -> None:
    engine = FakeEngine(micro_batches)
    loop_in(tmp_path, rule=micro_batches, engine=engine, ideas=[FASTER], budget=3).run()
    assert len(engine.ran) == 3


def test_what_was_left_open_is_looked_at_again_when_nothing_else_is_left(tmp_path: Path) -> None:
    """Predicted with an interval, so not repeated at once: one burst per side cannot resolve 1.2 %."""

    def close(recipe: Recipe) -> float:
        return 100_000 if recipe.knob("micro_batch_size") == 1 else 98_800

    engine = FakeEngine(close)
    predicted = Prediction(gain=0.001, gain_low=-0.05, gain_high=0.05)
    loop_in(
        tmp_path, rule=close, engine=engine, ideas=[Idea(changes={"micro_batch_size": 4}, predicted=predicted)]
    ).run()
    order = [burst.recipe.knob("micro_batch_size") for burst in engine.ran]
    assert order == [1, 4, 1, 4]
    _, candidate = trials_in(tmp_path)
    assert candidate.accepted
    assert read_study(tmp_path).best == candidate
