"""The whole way from paths to an Analysis: find, read and break down (one process a core), judge."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from analyzers.breakdown import break_down
from analyzers.diagnosis import Analysis
from analyzers.digest import Digest, digest
from analyzers.errors import TraceError
from analyzers.inputs import Inputs, find_inputs
from analyzers.job import summarise
from analyzers.readers import read
from analyzers.verdict import conclude
from analyzers.walls import find_walls

WORTH_A_PROCESS_BYTES = 1 << 20  # all traces together: below, starting processes costs more than reading


def analyze(paths: Sequence[Path]) -> Analysis:
    """Diagnose the traces of one job.

    Args:
        paths: trace files, folders of them (one a rank), or run folders of bursts, whose outcome.json is used.

    Raises:
        TraceError: nothing there can be read as a trace, or two are of one rank.
    """
    inputs = find_inputs([Path(p) for p in paths])
    digests = _digests(inputs)
    _refuse_second(digests)
    digests.sort(key=_place)
    job = summarise(digests, inputs.outcome)
    return Analysis(diagnosis=conclude(job, find_walls(job)), traces=[d.report for d in digests], ranks=list(job.ranks))


def _digests(inputs: Inputs) -> list[Digest]:
    """Of every rank; a run that failed may have left half a trace, and its failure says enough."""
    failed = inputs.outcome is not None and inputs.outcome.failure is not None
    found: list[Digest] = []
    for result in _each(inputs.traces):
        if isinstance(result, TraceError):
            if not failed:
                raise result
        else:
            found += result
    return found


def _each(traces: Sequence[Path]) -> Iterator[list[Digest] | TraceError]:
    """One result a trace, in order; memory holds a timeline a core at most."""
    workers = min(len(traces), len(os.sched_getaffinity(0)))
    if workers < 2 or sum(path.stat().st_size for path in traces) < WORTH_A_PROCESS_BYTES:
        yield from map(_digest_file, traces)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        yield from pool.map(_digest_file, traces)


def _digest_file(path: Path) -> list[Digest] | TraceError:
    try:
        return [digest(break_down(timeline)) for timeline in read(path)]
    except TraceError as error:
        return error


def _refuse_second(digests: Sequence[Digest]) -> None:
    """Two traces of one rank are two jobs, or one job twice: their steps must not be averaged."""
    ranks: dict[int, str] = {}
    for one in digests:
        if one.rank is not None and ranks.setdefault(one.rank, one.report.path) != one.report.path:
            raise TraceError(
                Path(one.report.path),
                f"is of rank {one.rank}, as is {ranks[one.rank]}",
                hint="name one trace for each rank of one job; of a study, one burst: STUDY/bursts/0001",
            )


def _place(one: Digest) -> tuple[float, int, str]:
    rank = float("inf") if one.rank is None else float(one.rank)
    return rank, one.report.devices[0] if one.report.devices else -1, one.report.path
