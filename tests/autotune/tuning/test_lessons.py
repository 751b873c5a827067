"""`run --learn-from`: lessons are copied into the journal, so that a resumed or copied study decides alike."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.looks.reasons import proposal_text
from autotune.tuning.journal import read_study
from autotune.tuning.lessons import lessons_for
from tests.autotune.outside import SMALL
from trainer.recipe import load_recipe

RECIPE = SMALL.replace("nodes: 2", "nodes: 1")

MACHINE = "estimate: {source: night, trials: 4, gpu: h200, factors: {gemm: {mean: -0.1, deviation: 0.05}}}\n"


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a recipe, a study of it, and one that learned from that study."""
    folder = tmp_path_factory.mktemp("taught")
    for gpu in ("h200", "b200"):
        (folder / f"{gpu}.yaml").write_text(RECIPE.replace("h100", gpu))
    (folder / "bare.yaml").write_text("links: {network: 0.6}\n")
    (folder / "ours.yaml").write_text(MACHINE)
    assert main(["run", str(folder / "h200.yaml"), "--budget", "2", "--study", str(folder / "first")]) == 0
    words = ["run", str(folder / "h200.yaml"), "--budget", "2", "--study", str(folder / "second")]
    assert main([*words, "--learn-from", str(folder / "first")]) == 0
    return folder


def test_what_was_learnt_is_in_the_journal_and_named_in_every_reason(taught: Path) -> None:
    history = read_study(taught / "second")
    (lesson,) = history.lessons
    assert (lesson.study, lesson.trials) == ("first", 2)
    assert lesson.mean
    assert proposal_text(history.trials[1].proposal).endswith("and from 2 of first")


def test_a_study_that_learnt_goes_on_without_the_one_it_learnt_from(taught: Path, tmp_path: Path) -> None:
    shutil.copytree(taught / "second", tmp_path / "copy")
    words = ["run", str(taught / "h200.yaml"), "--study", str(tmp_path / "copy"), "--resume", "--budget", "3"]
    assert main(words) == 0
    history = read_study(tmp_path / "copy")
    assert history.lessons == read_study(taught / "second").lessons
    assert len(history.finished) == 3


def test_a_machine_file_is_a_lesson(taught: Path) -> None:
    (lesson,) = lessons_for(load_recipe(str(taught / "h200.yaml")), [taught / "ours.yaml"])
    assert (lesson.study, lesson.trials, lesson.mean, lesson.deviation) == ("night", 4, {"gemm": -0.1}, {"gemm": 0.05})


@pytest.mark.parametrize(
    ("recipe", "words", "said"),
    [
        ("b200.yaml", ["--learn-from", "first"], "it ran on h200, this recipe is for b200"),
        ("h200.yaml", ["--learn-from", "nowhere"], "not a study"),
        ("h200.yaml", ["--learn-from", "bare.yaml"], "no section `estimate`"),
        ("b200.yaml", ["--learn-from", "ours.yaml"], "it was learned on h200, this recipe is for b200"),
        (
            "h200.yaml",
            ["--study", "second", "--resume", "--learn-from", "first"],
            "keeps the lessons it started with",
        ),
    ],
    ids=["other GPUs", "no study", "no machine file", "a machine of other GPUs", "resumed"],
)
def test_what_holds_no_lesson_is_refused_before_a_study_is_made(
    recipe: str,
    words: list[str],
    said: str,
    taught: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(taught)
    assert main(["run", recipe, *words]) == 2
    assert said in capsys.readouterr().err
    assert not Path("studies").exists()
