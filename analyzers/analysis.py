"""The whole way from paths to an Analysis: find, read, break down, judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from analyzers.breakdown import Breakdown, break_down
from analyzers.diagnosis import Analysis
from analyzers.errors import TraceError
from analyzers.inputs import Inputs, find_inputs
from analyzers.job import summarise
from analyzers.readers import read
from analyzers.timeline import Timeline
from analyzers.verdict import conclude
from analyzers.walls import find_walls


def analyze(paths: Sequence[Path]) -> Analysis:
    """Diagnose the traces of one job.

    Args:
        paths: trace files, folders of them (one a rank), or run folders of bursts, whose outcome.json is used.

    Raises:
        TraceError: nothing there can be read as a trace.
    """
    inputs = find_inputs([Path(p) for p in paths])
    breakdowns = [break_down(timeline) for timeline in _timelines(inputs)]
    breakdowns.sort(key=_place)
    job = summarise(breakdowns, inputs.outcome)
    return Analysis(diagnosis=conclude(job, find_walls(job)), traces=[b.report() for b in breakdowns])


def _timelines(inputs: Inputs) -> Iterator[Timeline]:
    """Every timeline, one at a time; a run that failed may have left half a trace, and its failure says enough."""
    failed = inputs.outcome is not None and inputs.outcome.failure is not None
    for path in inputs.traces:
        try:
            yield from read(path)
        except TraceError:
            if not failed:
                raise


def _place(breakdown: Breakdown) -> tuple[float, int, str]:
    timeline = breakdown.timeline
    rank = float("inf") if timeline.rank is None else float(timeline.rank)
    return rank, -1 if timeline.device_index is None else timeline.device_index, timeline.path
