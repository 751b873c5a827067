"""Adding a wall takes one file and one line of the enum: a copy of the packages with both diagnoses, draws and
documents it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.diagnosis import Wall
from analyzers.walls import wall_kinds, walls
from autotune.looks.segments import KINDS, families
from tests.places import ROOT

PACKAGES = ("analyzers", "autotune", "docs", "policies", "trainer")
ENUM_LINE = '    UNDETERMINED = "undetermined"\n'
FILE = '''"""Bubble: the device waits for another pipeline stage.

*What it is.* Idle time at the ends of a pipeline.
*How it shows.* A pending receive.
*What it costs.* A share of the step.
*When it does not apply.* Without pipeline parallelism.
*Source.* A test.
"""

from analyzers.diagnosis import Wall, WallFinding
from analyzers.ranks.job import Job
from analyzers.wall_kind import WallKind

KIND = WallKind(
    wall=Wall.BUBBLE,
    order=5,
    loses="a pipeline stage waits for another",
    column="pipeline",
    style="white on red",
    segments=("bubble",),
)


def find(job: Job) -> WallFinding | None:
    us = job.step.bubble_us if job.step else 0.0
    return WallFinding(wall=KIND.wall, recoverable_us=us, share=job.share(us), evidence=["the pipeline is idle"])
'''
USED = """
from rich.console import Console

from analyzers.diagnosis import Wall
from analyzers.one_rank.rank_step import RankStep
from analyzers.outcome import RunOutcome
from analyzers.ranks.job import Job
from analyzers.verdict import conclude
from analyzers.walls import find_walls
from autotune.looks.letter_bars import print_bars
from autotune.looks.proposals import _wall
from autotune.looks.segments import KINDS, Segment, families
from autotune.report.before_after import LOSSES
from docs.site.reference import knobs, walls as pages

step = RankStep(duration_us=140_000.0, compute_us=70_000.0, bubble_us=60_000.0)
job = Job(step=step, steps=3, classified=1.0, outcome=RunOutcome())
found = conclude(job, find_walls(job))
assert Wall.BUBBLE in {finding.wall for finding in found.walls}, found
assert "a pipeline stage waits for another for 50 % of the step" in _wall(
    {"wall": "bubble", "lost_us": 50.0, "step_us": 100.0}
)
assert "bubble" in LOSSES
assert families()[4] is Wall.BUBBLE
bubble = next(kind for kind in KINDS if kind.key == "bubble")
console = Console(force_terminal=True, color_system="truecolor", width=80)
with console.capture() as drawn:
    print_bars(console, [("step", [Segment(kind=bubble, us=1.0)])])
assert "[37;41m" in drawn.get()
assert "walls/bubble.html" in {page.path for page in pages.pages()}
print("added")
"""


def test_a_wall_is_a_file_and_one_line(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    verdict = tmp_path / "analyzers" / "diagnosis.py"
    text = verdict.read_text(encoding="utf-8")
    assert ENUM_LINE in text
    verdict.write_text(text.replace(ENUM_LINE, f'    BUBBLE = "bubble"\n{ENUM_LINE}'), encoding="utf-8")
    (tmp_path / "analyzers" / "walls" / "bubble.py").write_text(FILE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", USED], cwd=tmp_path, capture_output=True, text=True, check=False, env={"PYTHONPATH": "."}
    )
    assert done.stdout == "added\n", done.stderr


def test_every_wall_has_words_a_colour_and_a_place_of_its_own() -> None:
    kinds = wall_kinds()
    assert set(kinds) == set(Wall) - {Wall.UNDETERMINED}
    for values in zip(*((kind.order, kind.loses, kind.column, kind.style) for kind in kinds.values()), strict=True):
        assert len(set(values)) == len(kinds)


def test_a_wall_colours_parts_of_a_step_that_there_are() -> None:
    named = {segment for kind in wall_kinds().values() for segment in kind.segments}
    assert named <= {kind.key for kind in KINDS}
    assert {kind.family for kind in KINDS} == set(families())


def test_two_walls_with_the_same_segment_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = walls()[0]
    monkeypatch.setattr("analyzers.walls.walls", lambda: (module, module))
    wall_kinds.cache_clear()
    try:
        with pytest.raises(ValueError, match="several walls colour the segments"):
            wall_kinds()
    finally:
        wall_kinds.cache_clear()
