"""`export STUDY --to optuna`: what Optuna's own reader finds in the file."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from autotune.cli import main
from autotune.tuning.journal import read_study
from tests.autotune.tuning.fakes import OOM, Idea, loop_in, outcome_of
from trainer.burst import Failure, FailureKind, Outcome
from trainer.recipe import Recipe

CRASHED = Outcome(failure=Failure(kind=FailureKind.CRASH, evidence="an assertion"), ranks=2)


def planted(recipe: Recipe) -> Outcome:
    """Returns a planted outcome: micro batch 4 runs out of memory, 2 is faster than 1, manual garbage collection
    crashes."""
    size = int(recipe.knob("micro_batch_size"))
    return OOM if size == 4 else CRASHED if recipe.knob("manual_gc") else outcome_of(100_000 / size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a study of four trials."""
    ideas = [Idea(changes=change) for change in ({"micro_batch_size": 4}, {"manual_gc": True}, {"micro_batch_size": 2})]
    loop_in(tmp_path / "study", rule=planted, ideas=ideas).run()
    return tmp_path / "study"


def load(path: Path) -> optuna.Study:
    storage = f"sqlite:///{path}"
    return optuna.load_study(study_name=optuna.get_all_study_names(storage)[0], storage=storage)


def test_every_trial_is_in_the_optuna_study_and_an_oom_is_infeasible(folder: Path, tmp_path: Path) -> None:
    assert main(["export", str(folder), "--to", "optuna", "-o", str(tmp_path / "study.db")]) == 0
    study, trials = load(tmp_path / "study.db"), read_study(folder).trials
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    assert [trial.user_attrs["trial"] for trial in study.trials] == [trial.number for trial in trials]
    assert [trial.params["micro_batch_size"] for trial in study.trials] == [1, 4, 1, 2]
    assert [trial.params["manual_gc"] for trial in study.trials] == [False, False, True, False]
    complete, fail = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL
    assert [trial.state for trial in study.trials] == [complete, complete, fail, complete]
    assert study.best_trial.number == 3
    assert [trial.constraints["memory"] > 0 for trial in study.trials if trial.state == complete] == [
        False,
        True,
        False,
    ]
    assert all(trial.user_attrs["because"] for trial in study.trials)


def test_the_study_replaces_a_file_only_by_force(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_text("mine")
    words = ["export", str(folder), "--to", "optuna", "-o", str(path)]
    assert main(words) == 2
    assert path.read_text() == "mine"
    assert main([*words, "--force"]) == 0
    assert load(path).trials
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".moe-autotune")] == []


@pytest.mark.parametrize("words", [["cpu-moe", "-o", "study.db"], ["STUDY"]], ids=["no study", "no file"])
def test_what_is_no_study_or_has_no_file_is_refused(
    folder: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", *(str(folder) if word == "STUDY" else word for word in words), "--to", "optuna"]) == 2
    assert not (tmp_path / "study.db").exists()
    assert "study" in capsys.readouterr().err
