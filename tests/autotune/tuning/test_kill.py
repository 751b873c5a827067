"""`kill -9` of the tuner at random moments: the study continues and ends as it would have without the kill."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_study
from tests.autotune.outside import SMALL
from tests.draws import few
from tests.places import ROOT

BUDGET = "3"
SEEDS = 6


def tuner(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "autotune.cli", "run", "base.yaml", "--budget", BUDGET, "--study", "s", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def finish(folder: Path, *words: str) -> History:
    """Runs the tuner to its end in this process, which spares its start."""
    assert main(["run", str(folder / "base.yaml"), "--budget", BUDGET, "--study", str(folder / "s"), *words]) == 0
    return read_study(folder / "s")


def kill_when_the_journal_has(run: subprocess.Popen[bytes], journal: Path, size: int) -> None:
    """Kills the tuner once its journal has so many bytes: a moment that does not depend on the machine's speed."""
    while run.poll() is None and not (journal.exists() and journal.stat().st_size >= size):
        with suppress(subprocess.TimeoutExpired):
            run.wait(timeout=0.02)
    run.kill()
    run.communicate()


def decided(history: History) -> list[object]:
    """Returns all of a study but its clock."""
    return [
        (trial.number, trial.recipe, trial.bursts, trial.status, trial.verdict, trial.verdict_reason, step_times)
        for trial in history.trials
        for step_times in [[outcome.step_us for outcome in trial.outcomes]]
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[History, int]:
    """Returns the study without a kill, and the size of its journal."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "base.yaml").write_text(SMALL)
    return finish(folder), (folder / "s" / JOURNAL).stat().st_size


@pytest.mark.parametrize("seed", few(range(SEEDS), 1, later=pytest.mark.faults))
def test_a_killed_study_ends_as_it_would_have(seed: int, tmp_path: Path, whole: tuple[History, int]) -> None:
    uninterrupted, size = whole
    (tmp_path / "base.yaml").write_text(SMALL)
    journal = tmp_path / "s" / JOURNAL
    moments = sorted(random.Random(seed).sample(range(size), 2))
    kill_when_the_journal_has(tuner(tmp_path), journal, moments[0])
    resumed = ["--resume"] if journal.exists() else []
    kill_when_the_journal_has(tuner(tmp_path, *resumed), journal, moments[1])
    history = finish(tmp_path, "--resume")
    assert decided(history) == decided(uninterrupted)
    assert history.best is not None
    assert uninterrupted.best is not None
    assert history.best.recipe == uninterrupted.best.recipe
    numbers = [burst.burst for burst in history.finished]
    assert numbers == sorted(set(numbers)), "no finished burst is paid for twice"
