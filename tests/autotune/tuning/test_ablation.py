"""`run --ablate`: changes that the gain does not need are taken out at the end, within the budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.tuning.events import AblationStarted, Event, Judged, Proposed
from autotune.tuning.journal import JOURNAL, read_events, read_study
from policies.reason import ReasonKind
from policies.trial import ChangeState, Phase, Verdict
from tests.autotune.outside import SMALL
from trainer.recipe import Recipe

BUDGET, ABLATED = "7", "4"
MACHINE = "engine: simulated, machine: {noise: {burst: 0.001, step: 0.001}}"
RECIPE = SMALL.replace("engine: simulated", MACHINE)


def tuned(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["run", "a.yaml", "--study", "s", "--budget", BUDGET, "--ablate", ABLATED, "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def timeless(events: list[Event]) -> list[object]:
    return [(type(each), getattr(each, "trial", None), getattr(each, "burst", None)) for each in events]


@pytest.fixture(autouse=True)
def _recipe(empty_folder: Path) -> None:
    (empty_folder / "a.yaml").write_text(RECIPE)


def test_the_smallest_change_with_the_gain_is_exported_and_a_cut_ablation_resumes(
    capfd: pytest.CaptureFixture[str],
) -> None:
    document = tuned(capfd)
    history, events = read_study(Path("s")), read_events(Path("s") / JOURNAL)[0]
    started = next(each for each in events if isinstance(each, AblationStarted))
    before, best = history.attempted[started.tuned], history.best
    assert best is not None
    assert best.proposal.phase is Phase.ABLATION
    assert best.verdict_reason is not None
    assert best.verdict_reason.kind is ReasonKind.COSTS_NOTHING
    base = Recipe.model_validate(history.study.recipe) if history.study else before.recipe
    assert len(base.diff(best.recipe)) < len(base.diff(before.recipe))
    assert len(history.finished) <= int(BUDGET)
    gone = [each for each in document["fixes"] if each["state"] == ChangeState.TAKEN_OUT]
    assert {each["fix"] for each in gone} == set(best.verdict_reason.figures["taken"])
    page, text = Path("s/report.html").read_text(), Path("s/report.md").read_text()
    assert all("The changes and their shares" in each for each in (page, text))
    assert main(["export", "s", "--to", "yaml"]) == 0
    assert f"# {gone[0]['fix']}: predicted share" in capfd.readouterr().out

    for name, cut in cuts(events).items():  # a kill at this line, then --resume
        lines = (Path("s") / JOURNAL).read_bytes().splitlines(keepends=True)
        (Path("s") / JOURNAL).write_bytes(b"".join(lines[:cut]))
        tuned(capfd, "--resume")
        again = [each for each in read_events(Path("s") / JOURNAL)[0] if type(each).__name__ != "TunerStarted"]
        whole = [each for each in events if type(each).__name__ != "TunerStarted"]
        assert timeless(again) == timeless(whole), name


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
