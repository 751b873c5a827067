"""A study interrupted while a trial is repeated: judged from the bursts it has, and said so everywhere."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from autotune.cli import main
from autotune.tuning.events import Ended, Judged
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, events_of, read_events, read_study
from autotune.tuning.live import summary
from autotune.tuning.provisional import with_provisional_verdicts
from policies.reason import ReasonKind
from policies.trial import Phase, Verdict
from tests.autotune.report.drawn_study import STEPS, events, write_study
from tests.autotune.tuning.fakes import OOM, FakeEngine, Idea, loop_in, outcome_of
from trainer.burst import Burst, Outcome
from trainer.recipe import Recipe

FITS = Idea(changes={"recompute_granularity": "selective", "recompute_modules": ("core_attn",)}, phase=Phase.FIT)


def scattered(recipe: Recipe) -> Outcome | float:
    """Rule: the recipe as given does not fit; others have steps so scattered that their first burst is repeated."""
    return OOM if recipe.knob("recompute_granularity") is None else outcome_of(100_000, spread=0.2)


class Interrupted(FakeEngine):
    """Engine that gets Ctrl-C while burst 3, the repeat of trial 1, runs."""

    def run(self, burst: Burst) -> Outcome:
        if burst.number == 3:
            raise KeyboardInterrupt
        return super().run(burst)


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    folder = tmp_path / "s"
    loop = loop_in(folder, rule=scattered, ideas=[FITS], engine=Interrupted(scattered))
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    loop.bench.journal.append(Ended(status="interrupted", because="ended by Ctrl-C"))
    loop.bench.journal.close()
    return folder


def test_the_open_trial_is_the_best_so_far_and_the_journal_is_as_it_was(interrupted: Path) -> None:
    before = (interrupted / JOURNAL).read_bytes()
    history = read_study(interrupted)
    assert history.best is not None
    assert (history.best.number, history.best.provisional) == (1, True)
    assert history.best.verdict_reason is not None
    assert history.best.verdict_reason.kind is ReasonKind.FIRST_TO_RUN
    assert (interrupted / JOURNAL).read_bytes() == before
    raw = History(read_events(interrupted / JOURNAL)[0])
    assert raw.best is None, "the loop decides on what was judged"
    assert with_provisional_verdicts(history) is history


def test_every_command_says_what_runs_and_that_it_is_provisional(
    interrupted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(interrupted), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["best"], report["trials"][1]["provisional"]) == (1, True)
    assert report["trials"][1]["verdict"] == "accepted"
    for name in ("report.html", "report.md"):
        text = (interrupted / name).read_text()
        assert "nothing runs" not in text
        assert "Every trial failed" not in text
        assert "cluster.memory_gib" not in text
        assert "judged provisionally, before the verdict: trial 1 (accepted, 1 burst)" in text
    assert (interrupted / "tuned_recipe.yaml").read_text().startswith("# provisional: from 1 burst of trial 1")
    assert main(["status", str(interrupted), "--json"]) == 0
    best = json.loads(capfd.readouterr().out)["best"]
    assert (best["trial"], best["provisional"]) == (1, True)
    assert "provisional verdict" in best["words"]
    assert main(["export", str(interrupted), "--to", "megatron-lm"]) == 0
    assert "Provisional: from 1 burst of trial 1" in capfd.readouterr().out
    assert main(["studies", str(interrupted.parent)]) == 0
    assert "1.00×" in capfd.readouterr().out


def test_the_end_of_a_run_says_that_the_best_is_provisional(interrupted: Path) -> None:
    console = Console(file=io.StringIO(), width=110, color_system=None)
    summary(History(events_of(interrupted)), console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "accepted (provisional)" in said
    assert "best: trial 1 (planted), provisional verdict" in said


def test_resumed_it_is_judged_from_all_its_bursts(interrupted: Path) -> None:
    loop_in(interrupted, rule=scattered, ideas=[FITS]).run()
    trial = read_study(interrupted).trials[1]
    assert (trial.verdict, trial.provisional, len(trial.bursts)) == (Verdict.ACCEPTED, False, 2)


def test_a_journal_cut_before_a_verdict_has_that_trial_judged(tmp_path: Path) -> None:
    written = events(STEPS[:2], ended=False)
    assert isinstance(written[-1], Judged)
    history = read_study(write_study(tmp_path / "cut", written[:-1]))
    assert [trial.number for trial in history.trials if trial.provisional] == [1]
    assert history.trials[1].verdict is written[-1].verdict
