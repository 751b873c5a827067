"""Checks the cost of a study: every burst it paid for, as the engine reports it, else by the journal's clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from autotune.tuning.bench import Bench
from autotune.tuning.events import (
    BurstFinished,
    BurstLost,
    BurstStarted,
    Ended,
    Event,
    Proposed,
    StudyStarted,
    TunerStarted,
)
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, Journal, read_events, read_study
from autotune.tuning.lines import cost_in_words
from autotune.tuning.loop import Loop
from policies.trial import Phase
from tests.autotune.tuning.fakes import OOM, FakeEngine, base_recipe, loop_in, outcome_of
from trainer.burst import Burst, Failure, FailureKind, Outcome

LOST = Failure(kind=FailureKind.INFRASTRUCTURE, evidence="no port is free")
RECIPE = base_recipe()
RANKS = RECIPE.world_size


def proposed() -> Iterator[Event]:
    recipe = RECIPE.model_dump(mode="json")
    yield StudyStarted(version="0", name="s", recipe=recipe, digest="0", seed=1, environment={})
    yield Proposed(trial=0, parent=None, phase=Phase.FIT, fix="base", because="given", recipe=recipe, changes={})


def gpu_s(*events: Event) -> float:
    return History([*proposed(), *events]).gpu_hours * 3600


def started(at: float = 100.0) -> BurstStarted:
    return BurstStarted(at=at, burst=1, trial=0, purpose="measure")


def finished(outcome: Outcome, *, seconds: float = 30.0, ranks: int = RANKS, at: float = 140.0) -> BurstFinished:
    return BurstFinished(at=at, burst=1, trial=0, outcome=outcome, seconds=seconds, ranks=ranks)


def lost(at: float = 120.0, *, seconds: float | None = None, cost_s: float | None = None) -> BurstLost:
    return BurstLost(at=at, burst=1, trial=0, failure=LOST, seconds=seconds, cost_s=cost_s)


def ended(at: float) -> Ended:
    return Ended(at=at, status="interrupted", because="ended by a signal")


@pytest.mark.parametrize(("cost_s", "expected"), [(4000.0, 4000.0), (0.0, 0.0), (None, 30.0)])
def test_the_engine_says_what_a_burst_costs_or_else_the_clock(cost_s: float | None, expected: float) -> None:
    assert gpu_s(started(), finished(outcome_of(1000, cost_s=cost_s), ranks=1024)) == pytest.approx(1024 * expected)


def test_a_burst_that_fails_costs_as_well() -> None:
    failure = Failure(kind=FailureKind.OOM, evidence="out of memory")
    assert gpu_s(started(), finished(Outcome(failure=failure, cost_s=7.0))) == pytest.approx(7 * RANKS)


@pytest.mark.parametrize(
    ("event", "expected"),
    [(lost(120), 20.0), (lost(120, seconds=15.0), 15.0), (lost(120, seconds=15.0, cost_s=12.0), 12.0)],
)
def test_a_lost_burst_costs_what_is_known_of_it(event: BurstLost, expected: float) -> None:
    whole = gpu_s(started(100), event, finished(outcome_of(1000), seconds=30))
    assert whole == pytest.approx((expected + 30) * RANKS)


def test_a_burst_that_is_lost_again_and_passed_over_is_counted_as_often_as_it_ran() -> None:
    passed_over = finished(Outcome(failure=LOST, cost_s=9.0), seconds=9)
    assert gpu_s(started(100), lost(110), lost(119), passed_over) == pytest.approx(19 * RANKS)


def test_an_interrupted_burst_costs_until_the_interruption() -> None:
    assert gpu_s(started(100), ended(112)) == pytest.approx(12 * RANKS)
    resumed = finished(outcome_of(1000, cost_s=20.0), at=5000)
    assert gpu_s(started(100), ended(112), resumed) == pytest.approx(32 * RANKS)


def test_of_a_tuner_that_was_killed_nothing_is_known_and_no_burst_lasts_beyond_its_deadline() -> None:
    assert gpu_s(started(100)) == 0
    assert gpu_s(started(100), ended(100 + 86400)) == pytest.approx(RECIPE.burst.deadline_s * RANKS)


def test_an_end_between_bursts_costs_nothing() -> None:
    assert gpu_s(started(), finished(outcome_of(1000)), ended(9000)) == pytest.approx(30 * RANKS)


class Failing(FakeEngine):
    """Engine that loses the first burst and is interrupted in the second."""

    def run(self, burst: Burst) -> Outcome:
        super().run(burst)
        if len(self.ran) == 1:
            return Outcome(failure=LOST, cost_s=3.0)
        return Outcome(failure=Failure(kind=FailureKind.INTERRUPTED, evidence="Ctrl-C"))


def test_a_resumed_study_goes_on_counting_where_it_was(tmp_path: Path) -> None:
    def rule(recipe: object) -> Outcome:
        return outcome_of(100_000, cost_s=50.0)

    first = loop_in(tmp_path, rule=rule, engine=Failing(rule))
    with pytest.raises(KeyboardInterrupt):
        first.run()
    _journal(first).append(ended(0))
    before = read_study(tmp_path)
    assert before.gpu_hours * 3600 > 3 * RANKS
    second = loop_in(tmp_path, rule=rule)
    second.run()
    assert [one.burst for one in _journal(second).history.lost] == [1]
    assert _journal(second).history.gpu_hours == read_study(tmp_path).gpu_hours
    paid = 50.0 * RANKS * len(_journal(second).history.finished)
    assert read_study(tmp_path).gpu_hours == pytest.approx(before.gpu_hours + paid / 3600)


def _journal(loop: Loop) -> Journal:
    bench: Bench = loop.bench
    return bench.journal


def test_a_journal_without_costs_is_read(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    lines = [json.loads(msgspec.json.encode(event)) for event in (*proposed(), started(), lost(), finished(OOM))]
    del lines[-2]["seconds"], lines[-2]["cost_s"], lines[-1]["outcome"]["cost_s"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    events, _ = read_events(path)
    assert History(events).gpu_hours * 3600 == pytest.approx((20 + 30) * RANKS)


def test_simulated_hours_are_said_to_be() -> None:
    history = History([*proposed(), started(), finished(outcome_of(1000, cost_s=3600.0))])
    assert cost_in_words(history) == f"1 burst, {RANKS}.0 rank-hours"
    assert history.study is not None
    history.study.recipe["burst"]["engine"] = "simulated"
    assert cost_in_words(history) == f"1 burst, {RANKS}.0 simulated rank-hours"


def test_gpus_that_an_allocation_holds_while_the_tuner_decides_are_counted_apart() -> None:
    tuner = TunerStarted(at=50.0, recipe="r", budget=5, job="71")
    recorded: list[Event] = [*proposed(), tuner, started(100.0), finished(outcome_of(1000)), ended(at=150.0)]
    assert History(recorded).idle_gpu_hours * 3600 == pytest.approx((50 + 10) * RANKS)
    assert "rank-hours in which the allocation waited for the tuner" in cost_in_words(History(recorded))
    without = [msgspec.structs.replace(tuner, job=None) if event is tuner else event for event in recorded]
    assert History(without).idle_gpu_hours == 0


def test_a_job_per_burst_holds_no_gpus_between_bursts() -> None:
    recipe = RECIPE.model_dump(mode="json") | {"burst": {"launcher": {"slurm": {"job": "per-burst"}}}}
    study = StudyStarted(version="0", name="s", recipe=recipe, digest="0", seed=1, environment={})
    recorded: list[Event] = [study, TunerStarted(at=50.0, recipe="r", budget=5, job="71"), ended(at=150.0)]
    assert History(recorded).idle_gpu_hours == 0
    inside = msgspec.structs.replace(study, recipe=recipe | {"burst": {"launcher": "slurm"}})
    assert History([inside, *recorded[1:]]).idle_gpu_hours > 0
