"""`kill -9` of the tuner at random moments: the study continues and ends as it would have without the kill."""

from __future__ import annotations

import multiprocessing
import random
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_study
from tests.autotune.outside import SEED, SMALL
from tests.draws import few

BUDGET = "3"
SEEDS = 6


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Returns a context whose processes have imported the tuner already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["autotune.commands.run", "autotune.session.session", "policies.search.sampler"])
    return context


def arguments(folder: Path, *words: str) -> list[str]:
    return ["run", str(folder / "base.yaml"), "--budget", BUDGET, "--seed", SEED, "--study", str(folder / "s"), *words]


def finish(folder: Path, *words: str) -> History:
    """Runs the tuner to its end in this process, which saves starting another."""
    assert main(arguments(folder, *words)) == 0
    return read_study(folder / "s")


def kill_when_the_journal_has(run: ForkServerProcess, journal: Path, size: int) -> None:
    """Starts the tuner and kills it once its journal has so many bytes: a moment that does not depend on the machine's
    speed."""
    run.start()
    while run.is_alive() and not (journal.exists() and journal.stat().st_size >= size):
        run.join(timeout=0.02)
    run.kill()
    run.join()


def decided(history: History) -> list[object]:
    """Returns the decisions of a study, with the steps that they rest on."""
    return [
        (trial.number, trial.recipe, trial.bursts, trial.status, trial.verdict, trial.verdict_reason, step_times)
        for trial in history.trials
        for step_times in [[outcome.step_us for outcome in trial.outcomes]]
    ]


@pytest.fixture(scope="module")
def whole(ended: Path) -> tuple[History, int]:
    """Returns the study without a kill, and the size of its journal."""
    study = ended / "studies/sim-1"
    return read_study(study), (study / JOURNAL).stat().st_size


@pytest.mark.parametrize("seed", few(range(SEEDS), 1, later=pytest.mark.faults))
def test_a_killed_study_ends_as_it_would_have(
    seed: int, tmp_path: Path, whole: tuple[History, int], processes: ForkServerContext
) -> None:
    uninterrupted, size = whole
    (tmp_path / "base.yaml").write_text(SMALL)
    journal = tmp_path / "s" / JOURNAL
    moments = sorted(random.Random(seed).sample(range(size), 2))
    first = processes.Process(target=main, args=[arguments(tmp_path)])
    kill_when_the_journal_has(first, journal, moments[0])
    resumed = ["--resume"] if journal.exists() else []
    second = processes.Process(target=main, args=[arguments(tmp_path, *resumed)])
    kill_when_the_journal_has(second, journal, moments[1])
    history = finish(tmp_path, "--resume")
    assert decided(history) == decided(uninterrupted)
    assert history.best is not None
    assert uninterrupted.best is not None
    assert history.best.recipe == uninterrupted.best.recipe
    numbers = [burst.burst for burst in history.finished]
    assert numbers == sorted(set(numbers)), "no finished burst is paid for twice"
