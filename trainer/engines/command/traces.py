"""Moves the traces that a trainer wrote to the burst's `trace/`, one file per rank.

Bridge and older releases write `<tensorboard-dir>/HOST_PID.NS.pt.trace.json`, newer ones
`<tensorboard-dir>/../torch_profile/rank-R.json.gz`. Any `.json` or `.json.gz` in the folder counts, of a custom trainer
too, if its name contains `trace` or its folder is `torch_profile`.
"""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

_SUFFIXES = (".json", ".json.gz")
_RANK_IN_NAME = re.compile(r"rank-?(\d+)")
_RANK_INSIDE = re.compile(rb'"distributedInfo":\s*\{[^}]*?"rank":\s*(\d+)')
_HEAD_BYTES = 1 << 20  # Kineto writes distributedInfo before the events


def collect(written: Path, folder: Path) -> list[int]:
    """Moves every trace below `written` to `folder` as `rank<r>.pt.trace.json.gz`, and returns the ranks found, in
    order. A file that does not show its rank keeps its name, and the trace reader looks for the rank inside it. Deletes
    TensorBoard's own files, which are useless for a burst and contain all arguments, with secrets that nothing
    masks."""
    for path in written.rglob("events.out.tfevents.*"):
        path.unlink()
    ranks = []
    for path in list(_traces(written)):
        rank = _rank(path)
        name = path.name.removesuffix(".gz").removesuffix(".json") if rank is None else f"rank{rank}.pt.trace"
        folder.mkdir(parents=True, exist_ok=True)
        _move_zipped(path, folder / f"{name}.json.gz")
        if rank is not None:
            ranks.append(rank)
    return sorted(ranks)


def _traces(written: Path) -> Iterator[Path]:
    for path in sorted(written.rglob("*")):
        if path.is_file() and path.name.endswith(_SUFFIXES) and _is_trace(path):
            yield path


def _is_trace(path: Path) -> bool:
    return "trace" in path.name or path.parent.name == "torch_profile"


def _rank(path: Path) -> int | None:
    if named := _RANK_IN_NAME.search(path.name):
        return int(named[1])
    with _opened(path) as file:
        inside = _RANK_INSIDE.search(file.read(_HEAD_BYTES))
    return int(inside[1]) if inside else None


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.name.endswith(".gz") else path.open("rb")


def _move_zipped(path: Path, target: Path) -> None:
    if path.name.endswith(".gz"):
        shutil.move(path, target)
        return
    with path.open("rb") as source, gzip.open(target, "wb", compresslevel=1) as sink:
        shutil.copyfileobj(source, sink)
    path.unlink()
