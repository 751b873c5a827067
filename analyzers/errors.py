"""The error for a trace that cannot be read: which file, what is wrong with it, what to do about it."""

from __future__ import annotations

from functools import partial
from pathlib import Path


class TraceError(ValueError):
    """The input has no trace that can be analysed; `diagnose` ends with exit code 2."""

    def __init__(self, path: Path, what: str, *, hint: str) -> None:
        self.path = path
        self.what = what
        self.hint = hint
        super().__init__(f"{path}: {what}\n    → {hint}")

    def __reduce__(self) -> tuple[partial[TraceError], tuple[Path, str]]:
        """Makes the exception picklable, so that it can be passed between processes."""
        return partial(TraceError, hint=self.hint), (self.path, self.what)
