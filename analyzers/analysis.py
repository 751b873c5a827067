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
from analyzers.readers.json_events import CUT_SHORT
from analyzers.timeline import Timeline
from analyzers.verdict import conclude
from analyzers.walls import find_walls


def analyze(paths: Sequence[Path]) -> Analysis:
    """Diagnose the traces of one job.

    Args:
        paths: trace files, folders of them (one a rank), or run folders of bursts, whose outcome.json is used.

    Raises:
        TraceError: nothing there can be read as a trace, a trace ends too early, or two are of one rank.
    """
    inputs = find_inputs([Path(p) for p in paths])
    breakdowns = [break_down(timeline) for timeline in _timelines(inputs)]
    breakdowns.sort(key=_place)
    job = summarise(breakdowns, inputs.outcome)
    return Analysis(diagnosis=conclude(job, find_walls(job)), traces=[b.report() for b in breakdowns])


def _timelines(inputs: Inputs) -> Iterator[Timeline]:
    """Every timeline, one at a time; a run that failed may have left half a trace, and its failure says enough."""
    failed = inputs.outcome is not None and inputs.outcome.failure is not None
    ranks: dict[int, Path] = {}
    for path in inputs.traces:
        try:
            for timeline in read(path):
                _refuse_cut(path, timeline)
                _refuse_second(path, timeline.rank, ranks)
                yield timeline
        except TraceError:
            if not failed:
                raise


def _refuse_cut(path: Path, timeline: Timeline) -> None:
    """The profiler writes the device's events after the host's: what is left of a cut trace looks like a slow host."""
    if any(lost.why in CUT_SHORT for lost in timeline.dropped):
        raise TraceError(
            path,
            "is cut short: the events at its end are missing, and without them no wall can be named",
            hint="record or copy it again, and let the profiler finish writing (stop() before the process ends)",
        )


def _refuse_second(path: Path, rank: int | None, ranks: dict[int, Path]) -> None:
    """Two traces of one rank are two jobs, or one job twice: their steps must not be averaged."""
    if rank is not None and ranks.setdefault(rank, path) != path:
        raise TraceError(
            path,
            f"is of rank {rank}, as is {ranks[rank]}",
            hint="name one trace for each rank of one job; of a study, one burst: STUDY/bursts/0001",
        )


def _place(breakdown: Breakdown) -> tuple[float, int, str]:
    timeline = breakdown.timeline
    rank = float("inf") if timeline.rank is None else float(timeline.rank)
    return rank, -1 if timeline.device_index is None else timeline.device_index, timeline.path
