"""Checks the limits of `run`: figures that mean nothing are refused before a study starts, and signals of other kinds
interrupt or suspend it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.looks.svg import Axis
from autotune.session.interruption import Interruption
from autotune.tuning.history import History
from autotune.tuning.study import held, suspended
from autotune.tuning.study_status import rows_of, study_status
from tests.autotune.report.drawn_study import events


@pytest.mark.parametrize(
    "words",
    [
        ["--budget", "999999999999"],
        ["--gpu-hour-price", "inf"],
        ["--max-gpu-hours", "inf"],
        ["--until", "2020-01-01T00:00"],
    ],
)
def test_a_limit_that_means_nothing_is_refused(
    words: list[str], recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(recipe), "--study", "s", *words]) == 2
    assert words[0] in capsys.readouterr().err
    assert not Path("s").exists()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_sigusr1_and_sigusr2_interrupt_as_term_does(number: signal.Signals) -> None:
    with Interruption() as interruption, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert interruption.received


def test_a_tuner_that_a_signal_has_stopped_is_not_said_to_run(tmp_path: Path) -> None:
    started = History(events(ended=False)[:9])
    status = study_status(started, folder="s", now=100.0, held=True, suspended=True)
    assert status.state == "suspended"
    assert status.ends_at is None
    assert "suspended by a signal" in dict(rows_of(status, 100.0))["state"]
    assert held(tmp_path) is False
    assert not suspended(tmp_path)


def test_an_axis_of_the_smallest_figures_has_its_lines() -> None:
    assert Axis(low=0.0, high=3e-12, top=14, bottom=100).grid()
