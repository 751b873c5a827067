"""Analyzes the trace of one rank: its breakdown, its only step, its report."""

from __future__ import annotations

from pathlib import Path

from analyzers.diagnosis import Partition, TraceReport
from analyzers.one_rank.breakdown import Breakdown, break_down
from analyzers.readers import read
from tests.analyzers.drawing import Drawing


def breakdown_of(drawing: Drawing, folder: Path) -> Breakdown:
    (timeline,) = read(drawing.write(folder))
    return break_down(timeline)


def step_of(drawing: Drawing, folder: Path) -> Partition:
    (step,) = breakdown_of(drawing, folder).steps
    return step


def report_of(trace: Path) -> TraceReport:
    (timeline,) = read(trace)
    return break_down(timeline).report()
