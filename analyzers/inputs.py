"""Finds trace files in the paths that a user gives: files, folders of ranks, run folders of bursts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analyzers.errors import TraceError
from analyzers.outcome import RunOutcome, read_outcome
from analyzers.readers import format_of, snapshots

TRACE_FOLDER = "trace"
EXPORT_SUFFIX = ".sqlite"
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
TRACE_SUFFIXES = (".json", ".json.gz", EXPORT_SUFFIX, *REPORT_SUFFIXES)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The traces of one job, and the outcome of its run folder if there is one."""

    traces: tuple[Path, ...]
    outcome: RunOutcome | None = None


def find_inputs(paths: Sequence[Path]) -> Inputs:
    """Returns every trace in the paths, each once, in the order of their names, and the outcome of a run folder.

    Raises: TraceError: a path does not exist, or a folder has neither traces nor an outcome.
    """
    traces: dict[Path, Path] = {}
    outcome = None
    for path in paths:
        if not path.exists():
            raise TraceError(path, "there is no such file or folder", hint="check the path")
        if path.is_dir():
            outcome = outcome or read_outcome(path)
            found = _traces_in(path)
            if not found and outcome is None:
                raise TraceError(
                    path,
                    "has no traces",
                    hint=f"traces end in {', '.join(TRACE_SUFFIXES)}, memory snapshots in "
                    f"{' or '.join(snapshots.SUFFIXES)}; a folder may hold one for each rank",
                )
        else:
            found = [path]
        traces.update({f.resolve(): f for f in found})
    return Inputs(traces=tuple(traces.values()), outcome=outcome)


def _traces_in(folder: Path) -> list[Path]:
    """Returns the files that are traces or memory snapshots by name and content, and empty ones named like traces.

    A folder may also contain other JSON, a report next to its export, and pickles that are not memory snapshots.
    """
    own = folder / TRACE_FOLDER
    root = own if own.is_dir() else folder
    named = (f for f in sorted(root.rglob("*")) if f.is_file() and f.name.lower().endswith(TRACE_SUFFIXES))
    found = [f for f in named if f.stat().st_size == 0 or format_of(f) is not None]
    pickles = (f for f in sorted(folder.rglob("*")) if f.name.lower().endswith(snapshots.SUFFIXES) and f.is_file())
    found += [f for f in pickles if snapshots.is_snapshot(f)]
    return [f for f in found if f.suffix not in REPORT_SUFFIXES or f.with_suffix(EXPORT_SUFFIX) not in found]
