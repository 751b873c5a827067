"""Turns an exception into an exit code and problems (where, what, hint).

`ROWS` lists every expected exception type; one that is not listed is a bug and is shown with its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from analyzers.errors import TraceError
from autotune.exit_codes import BAD_INPUT, TOOL_FAILED
from trainer.errors import BadInputError, Problem, ToolError

# errno of a refused read or write → hint
DISK: dict[int, str] = {
    errno.ENOSPC: "free some space; finished bursts are kept, and --resume continues from there",
    errno.EDQUOT: "the disk quota is used up: free some space; --resume continues from there",
    errno.EROFS: "the file system is read-only: name a folder elsewhere (--study, -o)",
    errno.EACCES: "you cannot read or write there: name another folder (--study, -o) or change its permissions",
    errno.EPERM: "you cannot read or write there: name another folder (--study, -o) or change its permissions",
    errno.ENOTDIR: "a part of this path is a file: name another folder",
    errno.EISDIR: "this is a folder: name a file",
    errno.ENOENT: "check the path",
    errno.ENAMETOOLONG: "name a shorter path",
}
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # no path that the user named is at fault


class ProblemWords(TypedDict):
    where: str
    what: str
    hint: str  # what to do


class Failed(TypedDict):
    code: int  # the exit code
    problems: list[ProblemWords]


class ErrorDocument(TypedDict):
    """Document that a failed command prints with `--json`."""

    schema: int
    error: Failed


@dataclass(frozen=True, kw_only=True)
class Explained:
    code: int
    problems: tuple[Problem, ...]


def explain(error: Exception) -> Explained | None:
    """Returns the exit code and problems of an expected exception; None for a bug."""
    return next((row(error) for kind, row in ROWS if isinstance(error, kind)), None)


def _bad_input(error: BadInputError) -> Explained:
    return Explained(code=BAD_INPUT, problems=tuple(error.problems))


def _trace(error: TraceError) -> Explained:
    return Explained(code=BAD_INPUT, problems=(Problem(where=str(error.path), what=error.what, hint=error.hint),))


def _tool(error: ToolError) -> Explained:
    return Explained(code=TOOL_FAILED, problems=(Problem(where="failed", what=error.what, hint=error.hint),))


def _disk(error: OSError) -> Explained | None:
    if error.errno not in DISK:
        return None
    where = str(error.filename) if error.filename is not None else "writing"
    what = (error.strerror or str(error)).lower()
    code = TOOL_FAILED if error.errno in DISK_FULL else BAD_INPUT
    return Explained(code=code, problems=(Problem(where=where, what=what, hint=DISK[error.errno]),))


ROWS: tuple[tuple[type[Exception], Callable[..., Explained | None]], ...] = (
    (BadInputError, _bad_input),
    (TraceError, _trace),
    (ToolError, _tool),
    (OSError, _disk),
)
