"""Journals that earlier versions wrote: each is read, and those of every form are reported, exported and resumed.

`journals/<kind>/` holds the recipe as given and the journal of a study that the last version before a change of the
events wrote, named for what that version did not write yet; `as_of_6a0a633` is the newest without reasons. No journal
was edited: all are of simulated studies of six to nine bursts, that of `before_published` with links between nodes
that were given instead of probed. Who changes the events adds the journal of a study run just before the change.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.tuning.events import BurstLost, BurstStarted, LessonAdded, Probed, TunerStarted
from autotune.tuning.journal import JOURNAL, read_events, read_study
from tests.draws import few

JOURNALS = Path(__file__).parent / "journals"
KINDS = sorted(path.name for path in JOURNALS.iterdir())
OLDEST, NEWEST = "before_cores_per_rank", "as_of_6a0a633"
STOPS = {
    "after a proposal": b'"event":"proposal"',
    "amid a burst": b'"purpose":"measure"',
    "amid a repeat": b'"purpose":"repeat"',
}
# Journal -> event after which it is stopped and resumed; together they have every form of every event
OF_EVERY_FORM = {
    NEWEST: "amid a repeat",
    "before_published": "amid a burst",
    "before_ablation": "after a proposal",
    OLDEST: "after a proposal",
    "before_launch_rate": "amid a repeat",
    "before_cost": "amid a repeat",
    "before_cost_of_a_lost_burst": "after a proposal",
    "before_doubt": "amid a burst",
}
NAMED_FREELY = {"acting", "changes", "env", "recipe", "versions"}  # fields whose keys are a recipe's
MORE_BURSTS = 2  # what a resumed study may spend beyond what it had


def journal_of(kind: str) -> bytes:
    return gzip.decompress((JOURNALS / kind / f"{JOURNAL}.gz").read_bytes())


def study_of(kind: str, folder: Path) -> Path:
    """Writes the recipe and the journal of a study, without the files of its bursts; returns the folder."""
    folder.mkdir()
    shutil.copy(JOURNALS / kind / "recipe.yaml", folder)
    (folder / JOURNAL).write_bytes(journal_of(kind))
    return folder


def stopped(kind: str, stop: str) -> bytes:
    """Returns the journal up to its last event of that kind."""
    lines = journal_of(kind).splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines, 1) if STOPS[stop] in line)
    return b"".join(lines[:last])


def written(value: Any, place: str) -> Iterator[tuple[str, frozenset[str] | str]]:
    """Yields every place in an event with the keys that are there, or with the type of a value."""
    if isinstance(value, dict):
        yield place, frozenset(value)
        for key in value.keys() - NAMED_FREELY:
            yield from written(value[key], f"{place}.{key}")
    elif isinstance(value, list) and value:
        for inner in value:
            yield from written(inner, f"{place}[]")
    else:
        yield place, "number" if type(value) in (int, float) else type(value).__name__


@pytest.mark.parametrize("kind", KINDS)
def test_every_earlier_journal_is_read_whole(kind: str, tmp_path: Path) -> None:
    study = study_of(kind, tmp_path / "s")
    history = read_study(study)
    assert history.ended is not None
    assert history.best is not None
    assert history.best.number > 0
    assert all(trial.verdict_because or trial.verdict_reason for trial in history.trials)
    assert history.gpu_hours > 0


def test_the_journals_hold_every_event_that_earlier_versions_wrote(tmp_path: Path) -> None:
    found = {type(event) for kind in KINDS for event in read_events(study_of(kind, tmp_path / kind) / JOURNAL)[0]}
    assert {LessonAdded, Probed, BurstLost, TunerStarted} <= found


@pytest.mark.parametrize("kind", few(sorted(OF_EVERY_FORM, key=lambda kind: kind not in (OLDEST, NEWEST)), 2))
def test_status_report_and_export_work_on_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study_of(kind, Path("s"))
    history = read_study(Path("s"))
    assert main(["status", "s", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["bursts"] == len(history.finished)
    assert main(["report", "s", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["trials"]) == len(history.trials)
    assert main(["export", "s", "--to", "megatron-lm", "-o", "flags"]) == 0
    assert Path("flags").read_text()


def test_studies_of_every_version_are_listed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in KINDS:
        study_of(kind, Path(kind))
    assert main(["studies", ".", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert {row["folder"] for row in document["studies"]} == set(KINDS)
    assert document["unread"] == []


def test_every_form_of_an_event_is_in_one_of_the_journals_that_are_resumed() -> None:
    """Compares types, and which optional keys are missing together."""
    events = {kind: map(json.loads, journal_of(kind).splitlines()) for kind in KINDS}
    forms = {kind: {form for event in events[kind] for form in written(event, event["event"])} for kind in KINDS}
    keys: dict[str, set[str]] = defaultdict(set)
    for place, form in set.union(*forms.values()):
        keys[place] |= form if isinstance(form, frozenset) else set()

    def forms_of(kinds: Iterable[str]) -> set[tuple[str, str]]:
        found = set.union(*(forms[kind] for kind in kinds))
        absent = {(place, key) for place, form in found if isinstance(form, frozenset) for key in keys[place] - form}
        return absent | {(place, form) for place, form in found if isinstance(form, str)}

    assert forms_of(KINDS) == forms_of(OF_EVERY_FORM)


@pytest.mark.parametrize(("kind", "stop"), few(OF_EVERY_FORM.items(), 3))
def test_a_study_stopped_in_its_midst_goes_on_without_paying_twice(
    kind: str, stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = study_of(kind, Path("s"))
    before = stopped(kind, stop)
    (study / JOURNAL).write_bytes(before)
    given = shutil.copy(study / "recipe.yaml", "given.yaml")
    paid = len(read_study(study).finished)
    assert main(["run", given, "--study", "s", "--resume", "--budget", str(paid + MORE_BURSTS)]) == 0
    assert (study / JOURNAL).read_bytes().startswith(before)
    history = read_study(study)
    assert history.ended is not None
    assert history.ended.status in ("budget", "converged")
    assert [event.burst for event in history.finished] == list(range(1, len(history.finished) + 1))
    assert paid < len(history.finished) <= paid + MORE_BURSTS
    assert all(trial.verdict for trial in history.attempted.values())
    started = [event.burst for event in read_events(study / JOURNAL)[0] if isinstance(event, BurstStarted)]
    assert started == [event.burst for event in history.finished]
