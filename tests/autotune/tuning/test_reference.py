"""Checks the reference of the gain where the recipe as given does not run: one recipe near it, measured once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.tuning.journal import read_study
from autotune.tuning.loop import Loop
from policies.trial import Phase, Proposal, Status, Trial
from tests.autotune.tuning.fakes import (
    OOM,
    FakeEngine,
    FakePolicy,
    Idea,
    Killed,
    dies_after,
    loop_in,
    measured,
    micro_batches,
    trials_in,
)
from trainer.burst import Outcome
from trainer.recipe import Recipe

GOOD_GUESS = Idea(changes={"micro_batch_size": 4, "threads_per_rank": 2}, phase=Phase.FIT)
NEAR = {"micro_batch_size": 2}


def only_with_a_larger_micro_batch(recipe: Recipe) -> Outcome | float:
    return OOM if recipe.knob("micro_batch_size") == 1 else micro_batches(recipe)


def test_where_the_recipe_as_given_does_not_run_one_near_it_is_what_the_gain_is_counted_from(tmp_path: Path) -> None:
    engine = FakeEngine(only_with_a_larger_micro_batch)
    rule = only_with_a_larger_micro_batch
    loop_in(tmp_path, rule=rule, engine=engine, ideas=[GOOD_GUESS], nearest=NEAR).run()
    history = read_study(tmp_path)
    assert [trial.recipe.knob("micro_batch_size") for trial in history.trials] == [1, 4, 2]
    assert history.best is not None
    assert history.reference is not None
    assert (history.best.number, history.reference.number) == (1, 2)
    assert [burst.recipe.knob("micro_batch_size") for burst in engine.ran] == [1, 4, 2, 2, 4]


def test_the_reference_is_no_recipe_of_the_search_that_brought_no_gain(tmp_path: Path) -> None:
    engine = FakeEngine(only_with_a_larger_micro_batch)
    dull = Idea(changes={"manual_gc": True, "manual_gc_interval": 1}, bound=0.001)
    late = Idea(
        changes={"manual_gc": True, "manual_gc_interval": 2},
        bound=0.001,
        when=lambda best: any(burst.recipe.knob("micro_batch_size") == 2 for burst in engine.ran),
    )
    ideas, rule = [GOOD_GUESS, dull, late], only_with_a_larger_micro_batch
    loop_in(tmp_path, rule=rule, engine=engine, ideas=ideas, nearest=NEAR, patience=2).run()
    assert [trial.recipe.knob("manual_gc_interval") for trial in trials_in(tmp_path)] == [0, 0, 1, 0, 2]


def test_a_measured_reference_is_not_measured_again_on_resuming(tmp_path: Path) -> None:
    rule = only_with_a_larger_micro_batch
    loop_in(tmp_path, rule=rule, ideas=[GOOD_GUESS], nearest=NEAR, budget=3).run()
    engine = FakeEngine(rule)
    loop_in(tmp_path, rule=rule, engine=engine, ideas=[GOOD_GUESS], nearest=NEAR).run()
    assert [burst.recipe.knob("micro_batch_size") for burst in engine.ran] == [2, 4]
    assert len(trials_in(tmp_path)) == 3


LATE = Idea(changes={"overlap_grad_reduce": True})
ANOTHER = {"micro_batch_size": 2, "threads_per_rank": 2}


class Wavering(FakePolicy):
    """Policy that proposes more once the reference was tried, and would then choose another reference."""

    def propose(self, incumbent: Trial, phase: Phase, trials: Sequence[Trial]) -> Proposal | None:
        ideas = self.ideas if len(trials) > 2 else self.ideas[:1]
        return FakePolicy(ideas).propose(incumbent, phase, trials)

    def reference(self, given: Trial, trials: Sequence[Trial]) -> Proposal | None:
        return FakePolicy([], ANOTHER if len(trials) > 2 else NEAR).reference(given, trials)


def gains_late(recipe: Recipe) -> Outcome | float:
    found = only_with_a_larger_micro_batch(recipe)
    return found * 0.5 if isinstance(found, float) and recipe.knob("overlap_grad_reduce") else found


def wavering(folder: Path, *, engine: FakeEngine, **settings: Any) -> Loop:
    loop = loop_in(folder, rule=engine.rule, engine=engine, **settings)
    return replace(loop, policy=Wavering([GOOD_GUESS, LATE]))


def test_a_search_that_goes_on_after_the_last_pairs_measures_no_second_reference(tmp_path: Path) -> None:
    engine = FakeEngine(gains_late)
    wavering(tmp_path, engine=engine).run()
    history = read_study(tmp_path)
    assert [trial.recipe.knob("micro_batch_size") for trial in history.trials] == [1, 4, 2, 4]
    assert history.reference is not None
    assert history.best is not None
    assert (history.best.number, history.reference.number) == (3, 2)
    assert [len(trial.outcomes) for trial in history.trials] == [1, 2, 3, 2]


def test_a_reference_that_does_not_run_gives_way_to_the_next(tmp_path: Path) -> None:
    def larger_still(recipe: Recipe) -> Outcome | float:
        tight = recipe.knob("micro_batch_size") == 2 and recipe.knob("threads_per_rank") == 1
        return OOM if tight else gains_late(recipe)

    wavering(tmp_path, engine=FakeEngine(larger_still)).run()
    history = read_study(tmp_path)
    assert [trial.status for trial in history.trials] == [Status.OOM, Status.OK, Status.OOM, Status.OK, Status.OK]
    assert history.reference is not None
    assert history.reference.recipe.diff(history.trials[0].recipe).keys() == ANOTHER.keys()


@pytest.mark.parametrize("events", range(2, 26))
def test_killed_after_any_event_the_reference_stays(events: int, tmp_path: Path) -> None:
    wavering(tmp_path / "whole", engine=FakeEngine(gains_late)).run()
    engine = FakeEngine(gains_late)
    with pytest.raises(Killed):
        wavering(tmp_path / "killed", engine=engine, listener=dies_after(events)).run()
    wavering(tmp_path / "killed", engine=FakeEngine(gains_late)).run()
    whole, killed = read_study(tmp_path / "whole"), read_study(tmp_path / "killed")
    assert measured(killed.trials) == measured(whole.trials)
    assert killed.reference == whole.reference
