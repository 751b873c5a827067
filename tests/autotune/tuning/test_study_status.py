"""Checks the state of a study (running, ended, or left by its tuner), from the journal and the clock."""

from __future__ import annotations

import msgspec
import pytest

from autotune.tuning.events import BurstStarted, Ended, Event, Judged
from autotune.tuning.history import History
from autotune.tuning.study_status import StudyStatus, rows_of, span_words, study_status
from tests.autotune.report.drawn_study import clocked, events

NOW = 4000.0


def cut(upto: type[Event]) -> History:
    """Returns the history up to the last event of a kind."""
    written = clocked(events(ended=False))
    last = max(index for index, event in enumerate(written) if isinstance(event, upto))
    return History(written[: last + 1])


def said(status: StudyStatus) -> dict[str, str]:
    return dict(rows_of(status, NOW))


def test_a_running_study_says_phase_burst_what_runs_and_why_the_best_the_cost_and_the_end() -> None:
    history = cut(BurstStarted)
    rows = said(study_status(history, folder="s", now=NOW, held=True))
    assert rows["state"].startswith("running since")
    assert "process 41 on bench-3" in rows["state"]
    assert rows["phase"] == "retune"
    assert rows["burst"].startswith("12 of 20, since ")
    assert rows["trying"] == "trial 8, less_expert_parallel: expert_model_parallel_size 2 → 1"
    assert rows["because"] == "search around trial 7"
    assert rows["best"].startswith("trial 7 (threads), 1.83× trial 1 (95 % interval 1.")
    assert rows["cost"] == "11 bursts, 0.19 rank-hours"
    assert "about" in rows["ends"]
    assert "resume" not in rows


def test_between_two_trials_nothing_is_said_to_be_tried() -> None:
    status = study_status(cut(Judged), folder="s", now=NOW, held=True)
    assert status.trying is None
    assert said(status)["trying"] == "nothing yet: choosing the next recipe"


def test_of_many_changes_the_first_are_said() -> None:
    written = clocked(events(ended=False))
    last = max(index for index, event in enumerate(written) if isinstance(event, BurstStarted))
    changes = {f"knob_{number}": (0, 1) for number in range(9)}
    written[last - 1] = msgspec.structs.replace(written[last - 1], changes=changes)
    rows = said(study_status(History(written[: last + 1]), folder="s", now=NOW, held=True))
    assert rows["trying"].endswith("knob_3 0 → 1 and 5 more")


def test_a_study_whose_tuner_is_gone_says_when_it_last_spoke_and_how_to_go_on() -> None:
    status = study_status(cut(BurstStarted), folder="s", now=NOW, held=False)
    rows = said(status)
    assert status.state == "stopped"
    assert rows["state"].startswith("not running: killed in burst 12; its last journal entry is from ")
    assert rows["resume"] == "moe-autotune run base.yaml --study s --resume --budget 20"
    assert "ends" not in rows


def test_an_ended_study_says_how() -> None:
    status = study_status(History(clocked(events())), folder="s", now=NOW, held=False)
    assert status.state == "ended"
    assert status.status == "converged"
    assert "no fix is left" in said(status)["state"]
    assert status.resume is None


def test_a_study_that_spent_its_bursts_is_resumed_with_more_of_them() -> None:
    written = clocked(events(ended=False))
    written[1] = msgspec.structs.replace(written[1], budget=12)
    status = study_status(
        History([*written, Ended(status="budget", because="12 of 12 bursts are used")]), folder="s", now=NOW, held=False
    )
    assert said(status)["state"].startswith("ended by its budget at ")
    assert status.resume is not None
    assert status.resume.endswith("--budget 24")


def test_the_end_is_predicted_from_the_pace_and_never_after_the_deadline() -> None:
    history = cut(BurstStarted)
    assert history.tuner is not None
    free = study_status(history, folder="s", now=0.0, held=True)
    assert free.ends_at is not None
    pace = (history.finished[-1].at - history.tuner.at) / len(history.finished)
    assert free.ends_at == pytest.approx(history.finished[-1].at + (20 - len(history.finished)) * pace)
    history.tuner = msgspec.structs.replace(history.tuner, until=2500.0)
    tied = study_status(history, folder="s", now=0.0, held=True)
    assert tied.ends_at == 2500.0


def test_without_locks_nothing_is_claimed() -> None:
    status = study_status(cut(BurstStarted), folder="s", now=NOW, held=None)
    assert status.state == "unknown"
    assert "not known from here" in said(status)["state"]


def test_a_journal_of_an_older_version_has_a_status_too() -> None:
    status = study_status(History(events(ended=False)), folder="s", now=NOW, held=False)
    assert status.budget is None
    assert status.resume == "moe-autotune run s/recipe.yaml --study s --resume"
    assert rows_of(status, NOW)


@pytest.mark.parametrize("count", range(1, 40))
def test_a_study_has_a_status_after_any_event(count: int) -> None:
    status = study_status(History(clocked(events())[:count]), folder="s", now=NOW, held=True)
    assert rows_of(status, NOW)
    msgspec.json.encode(status)


@pytest.mark.parametrize(("seconds", "words"), [(45, "45 s"), (700, "12 min"), (12_000, "3 h 20 min")])
def test_durations_have_the_unit_that_people_use(seconds: float, words: str) -> None:
    assert span_words(seconds) == words
