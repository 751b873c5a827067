"""`run --ablate`: changes that the gain does not need are taken out at the end, within the budget."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.tuning.events import AblationStarted, Event, Judged, Proposed, TunerStarted
from autotune.tuning.journal import JOURNAL, read_events, read_study
from policies.reason import ReasonKind
from policies.trial import ChangeState, Phase, Verdict
from tests.autotune.outside import SMALL
from tests.draws import few
from trainer.recipe import Recipe

BUDGET, ABLATED = "7", "4"
MACHINE = "engine: simulated, machine: {noise: {burst: 0.001, step: 0.001}}"
RECIPE = SMALL.replace("engine: simulated", MACHINE)


def tune(*words: str) -> None:
    assert main(["run", "a.yaml", "--study", "s", "--budget", BUDGET, "--ablate", ABLATED, *words]) == 0


def timeless(events: list[Event]) -> list[object]:
    steps = [each for each in events if not isinstance(each, TunerStarted)]
    return [(type(each), getattr(each, "trial", None), getattr(each, "burst", None)) for each in steps]


@pytest.fixture(scope="module")
def ablated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a study that was ablated."""
    folder = tmp_path_factory.mktemp("ablated")
    (folder / "a.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tune()
    return folder / "s"


@pytest.fixture(autouse=True)
def _recipe(empty_folder: Path) -> None:
    (empty_folder / "a.yaml").write_text(RECIPE)


def test_the_smallest_change_with_the_gain_is_what_is_exported(
    ablated: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    history, events = read_study(ablated), read_events(ablated / JOURNAL)[0]
    started = next(each for each in events if isinstance(each, AblationStarted))
    before, best = history.attempted[started.tuned], history.best
    assert best is not None
    assert best.proposal.phase is Phase.ABLATION
    assert best.verdict_reason is not None
    assert best.verdict_reason.kind is ReasonKind.COSTS_NOTHING
    base = Recipe.model_validate(history.study.recipe) if history.study else before.recipe
    assert len(base.diff(best.recipe)) < len(base.diff(before.recipe))
    assert len(history.finished) <= int(BUDGET)
    fixes = json.loads((ablated / "report.json").read_text())["fixes"]
    gone = [each for each in fixes if each["state"] == ChangeState.TAKEN_OUT]
    assert {each["fix"] for each in gone} == set(best.verdict_reason.figures["taken"])
    page, text = (ablated / "report.html").read_text(), (ablated / "report.md").read_text()
    assert all("The changes and their shares" in each for each in (page, text))
    assert main(["export", str(ablated), "--to", "yaml"]) == 0
    assert f"# {gone[0]['fix']}: predicted share" in capfd.readouterr().out


@pytest.mark.parametrize("cut", few(["in its first burst", "before its verdict"], 1))
def test_a_study_killed_in_its_ablation_goes_on_as_it_would_have(cut: str, ablated: Path) -> None:
    shutil.copytree(ablated, "s")
    journal = Path("s") / JOURNAL
    whole = read_events(journal)[0]
    kept = journal.read_bytes().splitlines(keepends=True)[: cuts(whole)[cut]]
    journal.write_bytes(b"".join(kept))
    tune("--resume")
    assert timeless(read_events(journal)[0]) == timeless(whole)


def cuts(events: list[Event]) -> dict[str, int]:
    """Returns, for two cuts during the ablation, how many lines of the journal remain."""
    proposed = next(at for at, e in enumerate(events) if isinstance(e, Proposed) and e.phase is Phase.ABLATION)
    accepted = next(
        at for at, e in enumerate(events) if at > proposed and isinstance(e, Judged) and e.verdict is Verdict.ACCEPTED
    )
    return {"before its verdict": accepted, "in its first burst": proposed + 2}


def test_an_ablation_that_leaves_nothing_for_the_search_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "a.yaml", "--budget", "4", "--ablate", "4"]) == 2
    assert "none is left for the search" in capfd.readouterr().err
