"""The error for a trace that cannot be read: which file, what is wrong with it, what to do about it."""

from __future__ import annotations

from functools import partial
from pathlib import Path


class TraceError(ValueError):
    """Input without a trace that can be analysed; exit code 2 of `diagnose`."""

    def __init__(self, path: Path, what: str, *, hint: str) -> None:
        self.path = path
        self.what = what
        self.hint = hint
        super().__init__(f"{path}: {what}\n    → {hint}")

    def __reduce__(self) -> tuple[partial[TraceError], tuple[Path, str]]:
        """Rebuilds an exception that is passed between processes from its arguments."""
        return partial(TraceError, hint=self.hint), (self.path, self.what)
