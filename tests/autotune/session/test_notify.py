"""Checks the user's command at the end of a study: it always runs, with the summary, whatever ended the study."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.looks.reasons import end_text
from autotune.session.interruption import ALL, Interruption
from autotune.session.notify import PREFIX, notify, variables
from autotune.tuning.history import History
from autotune.tuning.journal import read_study
from autotune.tuning.study_status import study_status
from tests.autotune.outside import SMALL
from tests.autotune.report.drawn_study import STEPS, events
from tests.conftest import HANG_S

TELL = 'printf "%s|%s|%s" "$MOE_AUTOTUNE_STATUS" "$MOE_AUTOTUNE_EXIT_CODE" "$MOE_AUTOTUNE_SUMMARY" > notified'


@pytest.fixture(autouse=True)
def _recipe(empty_folder: Path) -> None:
    (empty_folder / "base.yaml").write_text(f"{SMALL}tune: {{notify: '{TELL}'}}\n")


def notified() -> list[str]:
    return Path("notified").read_text().split("|")


def of(history: History) -> dict[str, str]:
    return variables(study_status(history, folder="s", now=0.0, held=False), code=0, report="s/report.html")


def test_the_summary_is_in_the_environment() -> None:
    said = of(History(events()))
    assert said[PREFIX + "SUMMARY"].startswith("cpu-moe: converged, trial 7 (threads), 1.83× trial 1")
    assert said[PREFIX + "BEST_TRIAL"] == "7"
    assert float(said[PREFIX + "SPEEDUP"]) == pytest.approx(1.83, abs=0.01)
    assert said[PREFIX + "REPORT"] == "s/report.html"
    assert said[PREFIX + "RESUME"] == ""


def test_what_is_not_known_is_an_empty_text() -> None:
    said = of(History(events(STEPS[:1])))
    assert said[PREFIX + "SPEEDUP"] == ""
    assert "nothing runs" in said[PREFIX + "SUMMARY"]


def test_a_command_that_fails_or_hangs_is_said_and_harms_nothing() -> None:
    assert notify("exit 3", {}) == "notify: the command exited with 3"
    assert "ran longer than" in (notify("sleep 5", {}, wait_s=0.01) or "")
    assert notify("true", {}) is None


def test_the_recipes_command_runs_when_a_study_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "base.yaml", "--budget", "1", "--study", "s"]) == 0
    assert notified()[:2] == ["budget", "0"]
    assert notified()[2].endswith("(simulated)")
    log = capsys.readouterr().out
    assert "notify: sim: budget, trial 0 (base)" in log
    assert " best: trial 0 (base)" in log
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in log.splitlines()), "a line without its time"


def test_the_command_runs_when_a_deadline_ends_the_burst_in_flight(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("autotune.commands.run.moment_of", lambda text: time.time() + HANG_S)
    monkeypatch.setattr("autotune.tuning.bench.Bench._run", lambda *_: signal.raise_signal(signal.SIGALRM))
    assert main(["run", "base.yaml", "--study", "s", "--until", "07:00"]) == 0
    ended = read_study(Path("s")).ended
    assert ended is not None
    assert (ended.status, end_text(ended).partition(":")[0]) == ("budget", "the deadline was reached")
    assert notified()[:2] == ["budget", "0"]
    assert "resume with: moe-autotune run base.yaml --study s --resume" in capsys.readouterr().out
    assert Path("s/report.html").exists()


def test_the_command_runs_when_an_error_ends_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device", "s/journal.jsonl")

    monkeypatch.setattr("autotune.tuning.bench.Bench._run", broken)
    assert main(["run", "base.yaml", "--study", "s"]) == 3
    assert notified()[:2] == ["interrupted", "3"]
    ended = read_study(Path("s")).ended
    assert ended is not None
    assert end_text(ended) == "stopped by an error: no space left on device"


def test_the_earlier_signal_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in ALL]
    with pytest.raises(KeyboardInterrupt), Interruption(time.time() + HANG_S) as interruption:
        signal.raise_signal(signal.SIGALRM if signal.getitimer(signal.ITIMER_REAL)[0] > 0 else signal.SIGTERM)
    assert interruption.ended_event().status == "budget"
    for number, handler in zip(ALL, before, strict=True):
        signal.signal(number, handler)
    with Interruption():
        pass
    assert [signal.getsignal(number) for number in ALL] == before
