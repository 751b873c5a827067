"""Journals of versions without `reason` hold only the text of a verdict: they are read and shown as before."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from autotune.report import write_report
from autotune.tuning.events import Judged
from tests.autotune.report.drawn_study import events, write_study

TEXT = "decided by wall-clock time, far beyond the noise: as that version said it"


def test_the_text_of_an_old_verdict_is_shown_where_it_has_no_reason(tmp_path: Path) -> None:
    written = [
        msgspec.structs.replace(event, reason=None, because=TEXT) if isinstance(event, Judged) else event
        for event in events()
    ]
    study = write_study(tmp_path / "study", written)
    journal = study / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"reason":null,', b""))
    write_report(study)
    trials = json.loads((study / "report.json").read_text())["trials"]
    assert {trial["verdict_because"] for trial in trials} == {TEXT}
    assert {trial["verdict_reason"] for trial in trials} == {None}
    assert TEXT in (study / "report.md").read_text()
