"""A study that is stopped anywhere continues as if nothing had happened: the same trials, the same best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import autotune.tuning.loop as loop
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_events, read_study
from autotune.tuning.judge import Judgement, judge
from autotune.tuning.loop import Loop
from policies.trial import Phase, Status, Trial
from tests.autotune.tuning.fakes import OOM, FakeEngine, Idea, Killed, dies_after, loop_in, measured, micro_batches
from trainer.burst import Burst, Failure, FailureKind, Outcome, write_burst, write_outcome
from trainer.recipe import Recipe
from trainer.recipe.rules import Finding, check
from trainer.recipe.rules.rule import FindingKind


def tight(recipe: Recipe) -> Outcome | float:
    """Rule: the recipe as given does not fit, two recipes are nearly equal, and a third gains much."""
    if recipe.knob("recompute_granularity") is None:
        return OOM
    close = 0.985 if recipe.knob("manual_gc") else 1.0
    return micro_batches(recipe.replace({"manual_gc": False})) * close


IDEAS = [
    Idea(changes={"recompute_granularity": "selective", "recompute_modules": ("core_attn",)}, phase=Phase.FIT),
    Idea(changes={"manual_gc": True}),
    Idea(changes={"micro_batch_size": 3}),
    Idea(changes={"micro_batch_size": 4}),
]


def run_until(folder: Path, events: int) -> None:
    """Runs a study that dies right after writing so many events."""
    with pytest.raises(Killed):
        loop_in(folder, rule=tight, ideas=IDEAS, listener=dies_after(events)).run()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> History:
    folder = tmp_path_factory.mktemp("whole")
    loop_in(folder, rule=tight, ideas=IDEAS).run()
    return read_study(folder)


def test_the_study_is_worth_interrupting(uninterrupted: History) -> None:
    assert len(uninterrupted.trials) == 5
    assert len(uninterrupted.finished) >= 6


@pytest.mark.parametrize("events", range(2, 28))
def test_killed_after_any_event_it_goes_on_to_the_same_end(events: int, tmp_path: Path, uninterrupted: History) -> None:
    run_until(tmp_path, events)
    before = {event.burst for event in read_study(tmp_path).finished}
    engine = FakeEngine(tight)
    loop_in(tmp_path, rule=tight, ideas=IDEAS, engine=engine).run()
    assert measured(read_study(tmp_path).trials) == measured(uninterrupted.trials)
    assert before.isdisjoint(burst.number for burst in engine.ran), "a finished burst was paid for twice"


def test_a_line_torn_by_a_kill_is_cut_off_and_written_again(tmp_path: Path, uninterrupted: History) -> None:
    run_until(tmp_path, 9)
    journal = tmp_path / JOURNAL
    whole = journal.read_bytes()
    for cut in range(len(whole) - 40, len(whole)):
        journal.write_bytes(whole[:cut])
        loop = loop_in(tmp_path, rule=tight, ideas=IDEAS)
        assert loop.bench.journal.torn_bytes == len(whole[:cut]) - (whole[:cut].rfind(b"\n") + 1)
        loop.bench.journal.close()
    loop_in(tmp_path, rule=tight, ideas=IDEAS).run()
    assert measured(read_study(tmp_path).trials) == measured(uninterrupted.trials)


def test_what_a_lost_burst_left_is_kept_aside(tmp_path: Path) -> None:
    class Dying(FakeEngine):
        def run(self, burst: Burst) -> Outcome:
            outcome = super().run(burst)
            (burst.folder / "half").touch()
            if len(self.ran) == 2:
                raise Killed
            return outcome

    with pytest.raises(Killed):
        loop_in(tmp_path, rule=tight, ideas=IDEAS, engine=Dying(tight)).run()
    loop_in(tmp_path, rule=tight, ideas=IDEAS).run()
    assert (tmp_path / "bursts" / "0002.lost" / "half").exists()
    assert not (tmp_path / "bursts" / "0002" / "half").exists()


class Ending(FakeEngine):
    """Engine that leaves the files of a real one, and is killed when the outcome of the second burst is on disk.

    `adopts`: what it returns for a burst that it did not start itself.
    """

    adopts: Outcome | None = None
    dies_at = 2

    def run(self, burst: Burst) -> Outcome:
        outcome = super().run(burst)
        write_burst(burst)
        write_outcome(burst.folder, outcome)
        if len(self.ran) == self.dies_at:
            raise Killed
        return outcome

    def adopt(self, burst: Burst) -> Outcome | None:
        return self.adopts


def test_an_outcome_that_only_the_journal_lacks_is_not_paid_for_twice(tmp_path: Path, uninterrupted: History) -> None:
    with pytest.raises(Killed):
        loop_in(tmp_path, rule=tight, ideas=IDEAS, engine=Ending(tight)).run()
    engine = FakeEngine(tight)
    loop_in(tmp_path, rule=tight, ideas=IDEAS, engine=engine).run()
    assert engine.ran[0].number == 3
    assert measured(read_study(tmp_path).trials) == measured(uninterrupted.trials)


@pytest.mark.parametrize("kind", [FailureKind.INFRASTRUCTURE, FailureKind.INTERRUPTED])
def test_a_failure_that_is_not_the_recipes_is_run_again(kind: FailureKind, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        loop_in(tmp_path, rule=tight, ideas=IDEAS, engine=Ending(tight)).run()
    write_outcome(tmp_path / "bursts/0002", Outcome(failure=Failure(kind=kind, evidence="the node is gone")))
    engine = FakeEngine(tight)
    loop_in(tmp_path, rule=tight, ideas=IDEAS, engine=engine).run()
    assert engine.ran[0].number == 2
    assert (tmp_path / "bursts/0002.lost/outcome.json").exists()


@pytest.mark.parametrize("left", [True, False])
def test_a_burst_that_runs_on_without_its_tuner_is_adopted_where_the_engine_can(left: bool, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        loop_in(tmp_path, rule=tight, ideas=IDEAS, engine=Ending(tight)).run()
    (tmp_path / "bursts/0002/outcome.json").unlink()
    engine = Ending(tight)
    engine.dies_at, engine.adopts = 0, OOM if left else None
    loop_in(tmp_path, rule=tight, ideas=IDEAS, engine=engine).run()
    assert [burst.number for burst in engine.ran][:1] == ([] if left else [2])
    assert (read_study(tmp_path).finished[1].outcome == OOM) is left


def test_a_larger_budget_goes_on_where_the_smaller_one_ended(tmp_path: Path, uninterrupted: History) -> None:
    assert loop_in(tmp_path, rule=tight, ideas=IDEAS, budget=3).run().status == "budget"
    assert loop_in(tmp_path, rule=tight, ideas=IDEAS).run().status == "converged"
    assert [trial.recipe for trial in read_study(tmp_path).trials] == [trial.recipe for trial in uninterrupted.trials]


def test_a_finished_study_resumed_runs_nothing_and_ends_alike(tmp_path: Path, uninterrupted: History) -> None:
    loop_in(tmp_path, rule=tight, ideas=IDEAS).run()
    engine = FakeEngine(tight)
    ended = loop_in(tmp_path, rule=tight, ideas=IDEAS, engine=engine).run()
    assert engine.ran == []
    assert uninterrupted.ended is not None
    assert (ended.status, ended.reason) == (uninterrupted.ended.status, uninterrupted.ended.reason)


def test_every_event_reads_back_as_it_was_written(uninterrupted: History, tmp_path: Path) -> None:
    loop_in(tmp_path, rule=tight, ideas=IDEAS).run()
    events, size = read_events(tmp_path / JOURNAL)
    lines = (tmp_path / JOURNAL).read_bytes()
    assert b"".join(msgspec.json.encode(event) + b"\n" for event in events) == lines
    assert size == len(lines)


def twice(trial: Trial, **given: Any) -> Judgement:
    """Returns the judgement of another version, which measures every recipe that runs twice."""
    again = trial.status is Status.OK and len(trial.outcomes) < 2
    return dataclasses.replace(judge(trial, **given), again=again)


@pytest.mark.parametrize("events", range(2, 24))
def test_decisions_of_another_version_stay_and_the_search_continues_after_them(
    events: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resumes a study of a version that repeats less with one that repeats more, and the reverse."""
    for older, newer in ((twice, judge), (judge, twice)):
        folder = tmp_path / older.__name__
        monkeypatch.setattr(loop, "judge", older)
        run_until(folder, events)
        written, paid = (folder / JOURNAL).read_bytes(), len(read_study(folder).finished)
        monkeypatch.setattr(loop, "judge", newer)
        engine = FakeEngine(tight)
        ended = loop_in(folder, rule=tight, ideas=IDEAS, engine=engine).run()
        history = read_study(folder)
        assert ended.status == "converged"
        assert (folder / JOURNAL).read_bytes().startswith(written)
        assert [burst.number for burst in engine.ran] == list(range(paid + 1, len(history.finished) + 1))
        assert len(history.trials) == len(history.proposals) == 5
        assert history.open_burst is None


def forbids_three(recipe: Recipe) -> list[Finding]:
    """Returns the findings by the rules of another version, which has one rule more."""
    broken = recipe.knob("micro_batch_size") == 3
    planted = Finding(rule="planted", kind=FindingKind.ERROR, message="", hint="", knobs=(), source="")
    return [*check(recipe), *([planted] if broken else [])]


@pytest.mark.parametrize(("older", "newer"), [(forbids_three, check), (check, forbids_three)])
def test_what_other_rules_refused_or_let_run_stays_as_it_was(
    older: Callable[[Recipe], list[Finding]], newer: Callable[[Recipe], list[Finding]], tmp_path: Path
) -> None:
    def loop_of(rules: Callable[[Recipe], list[Finding]], budget: int) -> Loop:
        made = loop_in(tmp_path, rule=tight, ideas=IDEAS, budget=budget)
        return dataclasses.replace(made, bench=dataclasses.replace(made.bench, check=rules))

    loop_of(older, 6).run()
    before = {trial.number: trial.status for trial in read_study(tmp_path).trials}
    loop_of(newer, 20).run()
    after = {trial.number: trial.status for trial in read_study(tmp_path).trials}
    assert Status.FAILED in before.values() or older is check
    assert after | before == after


def test_trials_in_another_order_of_phases_are_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ideas = [
        Idea(changes={"micro_batch_size": 4}, phase=Phase.SCALE),
        Idea(changes={"manual_gc": True}, phase=Phase.FIT, when=lambda best: best.knob("micro_batch_size") == 4),
    ]
    monkeypatch.setattr(loop, "PHASES", (*loop.LATER_PASSES, Phase.FIT))
    loop_in(tmp_path, rule=micro_batches, ideas=ideas, budget=3).run()
    monkeypatch.undo()
    before = read_study(tmp_path)
    assert [trial.proposal.phase for trial in before.trials] == [Phase.FIT, Phase.SCALE, Phase.FIT]
    engine = FakeEngine(micro_batches)
    resumed = loop_in(tmp_path, rule=micro_batches, ideas=ideas, engine=engine)
    assert resumed.run().status == "converged"
    assert [trial.recipe for trial in resumed.bench.journal.history.trials] == [trial.recipe for trial in before.trials]
    assert min(burst.number for burst in engine.ran) == 4
