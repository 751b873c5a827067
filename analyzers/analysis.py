"""Makes an Analysis from paths: finds the traces, reads and partitions them (one process per core), and judges the
job."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from analyzers import heap, processes
from analyzers.cause import with_cause
from analyzers.diagnosis import WHOLE, Analysis, Stretch
from analyzers.errors import TraceError
from analyzers.inputs import Inputs, find_inputs
from analyzers.lanes import Kept
from analyzers.one_rank.breakdown import Breakdown, break_down
from analyzers.one_rank.digest import Digest, digest
from analyzers.ranks.job import summarise, with_memory
from analyzers.ranks.one_job import refuse_several_jobs
from analyzers.ranks.snapshots import SnapshotReport, attach, snapshot_report
from analyzers.readers import read
from analyzers.readers.snapshots import is_snapshot
from analyzers.step_verdicts import judge_steps, judged_steps, with_steps, with_verdicts
from analyzers.timeline import Timeline
from analyzers.verdict import conclude
from analyzers.walls import find_walls

Progress = Callable[[int, int], None]  # traces read, traces in all
Found = list[Digest] | SnapshotReport | TraceError
WORTH_A_PROCESS_BYTES = 1 << 20  # size of all traces together below which starting processes costs more than reading


def silent(done: int, of: int) -> None:
    """Ignores the progress of reading traces."""


def analyze(
    paths: str | Path | Sequence[str | Path],
    stretch: Stretch = WHOLE,
    progress: Progress = silent,
    kept: Kept | None = None,
) -> Analysis:
    """Diagnoses the traces of one job.

    Args:
        paths: one or several: trace files, folders of them (one per rank), or run folders of bursts, whose
            outcome.json is used.
        stretch: the part of each trace that is judged, and the ranges that are its steps.
        progress: called after each trace with the number of traces read, and the number of all.
        kept: receives the events of traces that this process reads itself, for drawing; those that other processes read
            are too large to pass on.

    Returns:
        The diagnosis with the walls ranked, and every trace's report; times in microseconds, memory in GiB (2**30
        bytes), shares 0..1.

    Raises:
        TraceError: a trace cannot be read (those of a failed run are left out instead), two are of the same rank or of
            different jobs, or one has no such stretch.
    """
    named = [paths] if isinstance(paths, str | Path) else paths
    inputs = find_inputs([Path(path).expanduser() for path in named])
    digests, snapshots = _read_all(inputs, stretch, progress, kept)
    digests = sorted(digests, key=_place)
    refuse_several_jobs(digests)
    digests, apart = attach(_numbered(digests), snapshots)
    job = with_memory(summarise(digests, inputs.outcome), apart)
    verdicts = judge_steps(job)
    diagnosis = with_cause(with_steps(conclude(job, find_walls(job)), job, digests, verdicts), job)
    cut_short = next((text for one in digests if (text := one.cut_short)), "")
    return Analysis(
        diagnosis=msgspec.structs.replace(diagnosis, cut_short=cut_short),
        traces=[
            *(
                with_verdicts(one.report, each, verdict, left)
                for one, each, verdict, left in zip(digests, job.each, verdicts, job.warm_up, strict=True)
            ),
            *apart,
        ],
        ranks=list(job.ranks),
        judged=judged_steps(job, digests),
    )


def _read_all(
    inputs: Inputs, stretch: Stretch, progress: Progress, kept: Kept | None
) -> tuple[list[Digest], list[SnapshotReport]]:
    """Reads the traces and snapshots of every rank.

    Ignores unreadable ones if the run failed, which may leave partial traces.
    """
    failed = inputs.outcome is not None and inputs.outcome.failure is not None
    found: list[Digest] = []
    snapshots: list[SnapshotReport] = []
    damaged: list[TraceError] = []  # snapshots: if traces were read, only the snapshots' memory figures are missing
    for result in _each(inputs.traces, stretch, progress, kept):
        if isinstance(result, TraceError):
            if is_snapshot(result.path):
                damaged.append(result)
            elif not failed:
                raise result
        elif isinstance(result, SnapshotReport):
            snapshots.append(result)
        else:
            found += result
    if damaged and not found and not failed:
        raise damaged[0]
    found[:1] = [_warned(one, damaged) for one in found[:1]]
    return found, sorted(snapshots, key=lambda one: (one.rank is None, one.rank or 0, one.path))


def _warned(one: Digest, damaged: Sequence[TraceError]) -> Digest:
    warnings = [f"{error.path.name} {error.what}" for error in damaged]
    return replace(one, report=msgspec.structs.replace(one.report, warnings=[*one.report.warnings, *warnings]))


def _each(traces: Sequence[Path], stretch: Stretch, progress: Progress, kept: Kept | None) -> Iterator[Found]:
    """Yields one result per trace, in order. At most one timeline per core is in memory."""
    sizes = {path: _size(path) for path in traces}
    cores = len(os.sched_getaffinity(0))
    if min(len(traces), cores) < 2 or sum(sizes.values()) < WORTH_A_PROCESS_BYTES or not processes.can_start():
        for number, path in enumerate(traces, 1):
            yield _digest_file(path, stretch=stretch, kept=kept)
            progress(number, len(traces))
        return
    # longest traces first, so that the last one to end is short
    longest_first = sorted(traces, key=lambda path: -sizes[path])
    found = {}
    digest_file = partial(_digest_file, stretch=stretch, kept=None)
    for path, done in processes.each(digest_file, longest_first, at_once=cores):
        found[path] = done
        progress(len(found), len(traces))
    for path in traces:
        result = found[path]
        yield _died(path, result) if isinstance(result, processes.Died) else result


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # deleted in the meantime: reading it reports that
        return 0


def _died(path: Path, how: processes.Died) -> TraceError:
    memory = how.exit_code == -signal.SIGKILL
    return TraceError(
        path,
        f"the process that read it was killed (exit code {how.exit_code})",
        hint="probably the kernel's OOM killer: name fewer traces at once, or give it more memory"
        if memory
        else "try again; if it happens again, report it with the trace",
    )


def _digest_file(path: Path, *, stretch: Stretch, kept: Kept | None) -> Found:
    try:
        if is_snapshot(path):
            return snapshot_report(path)
        heap.map_large_arrays()
        timelines = read(path)
        heap.give_back()
        return [digest(_broken_down(timeline, stretch, kept)) for timeline in timelines]
    except TraceError as error:
        return error


def _broken_down(timeline: Timeline, stretch: Stretch, kept: Kept | None) -> Breakdown:
    breakdown = break_down(timeline, stretch)
    if kept is not None:
        kept[timeline.path, timeline.device_index, breakdown.span.duration_us] = breakdown
    return breakdown


def _place(one: Digest) -> tuple[float, str, int]:
    rank = float("inf") if one.rank is None else float(one.rank)
    return rank, one.report.path, one.report.devices[0] if one.report.devices else -1


def _numbered(digests: list[Digest]) -> list[Digest]:
    """Numbers the ranks by their order if no trace records a rank (for example eight processes in one export)."""
    if len(digests) < 2 or any(one.rank is not None for one in digests):
        return digests
    return [_named(one, rank) for rank, one in enumerate(digests)]


def _named(one: Digest, rank: int) -> Digest:
    warning = f"the trace does not name its rank: numbered {rank} by the order of files and devices"
    return replace(one, report=msgspec.structs.replace(one.report, rank=rank, warnings=[*one.report.warnings, warning]))
