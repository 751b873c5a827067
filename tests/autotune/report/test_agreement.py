"""The report compares the journal with what each burst left in its folder."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from autotune.cli import main
from autotune.report import write_report
from autotune.tuning.events import BurstFinished
from autotune.tuning.journal import JOURNAL, events_of
from tests.autotune.report.drawn_study import write_study
from trainer.burst import write_outcome


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Returns the drawn study with the files of its bursts."""
    folder = write_study(tmp_path / "study")
    for event in events_of(folder):
        if isinstance(event, BurstFinished):
            burst = folder / "bursts" / f"{event.burst:04d}"
            burst.mkdir(parents=True)
            write_outcome(burst, event.outcome)
    return folder


def warnings(study: Path) -> list[str]:
    write_report(study)
    found: list[str] = json.loads((study / "report.json").read_text())["warnings"]
    return found


def test_a_study_whose_files_agree_has_no_warning(study: Path) -> None:
    assert warnings(study) == []
    assert "disagree" not in (study / "report.md").read_text()


def test_step_times_edited_in_the_journal_are_reported(study: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = (study / JOURNAL).read_text().splitlines()
    at = next(
        number for number, line in enumerate(lines) if '"event":"burst_finished"' in line and '"step_us":[9' in line
    )
    event = json.loads(lines[at])
    event["outcome"]["step_us"] = [us / 11 for us in event["outcome"]["step_us"]]
    lines[at] = json.dumps(event)
    (study / JOURNAL).write_text("\n".join(lines) + "\n")
    said = warnings(study)
    assert len(said) == 2, "outcome.json and steps.jsonl"
    assert said[0].startswith(f"burst {event['burst']} (trial {event['trial']}): step time 0 is ")
    assert f"{event['burst']:04d}/outcome.json" in said[0]
    assert f"{event['burst']:04d}/steps.jsonl" in said[1]
    for name in ("report.html", "report.md"):
        text = (study / name).read_text()
        assert "The journal disagrees with the bursts" in text
        assert text.index("these figures may be wrong") < text.index("What was wrong")
    assert main(["report", str(study)]) == 0
    assert capfd.readouterr().err.count("warning: burst") == 2


def test_a_failure_that_was_edited_away_is_reported(study: Path) -> None:
    folder = study / "bursts" / "0001"
    outcome = msgspec.json.decode((folder / "outcome.json").read_bytes())
    outcome["failure"] = None
    (folder / "outcome.json").write_bytes(msgspec.json.encode(outcome))
    assert warnings(study) == ["burst 1 (trial 0): the journal says it failed (oom), 0001/outcome.json that it ran"]


def test_files_that_are_gone_or_unreadable_do_not_stop_the_report(study: Path) -> None:
    (study / "bursts" / "0002" / "outcome.json").unlink()
    (study / "bursts" / "0002" / "steps.jsonl").unlink()
    (study / "bursts" / "0003" / "outcome.json").write_text("{")
    assert warnings(study) == ["burst 3 (trial 1): 0003/outcome.json cannot be read"]
