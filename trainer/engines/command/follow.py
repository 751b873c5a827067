"""Waits for a trainer and reads what it prints meanwhile; sees when nothing moves any more.

A hang is an iteration line that does not come: the first has a deadline of its own (imports, compilation, indexing of
data), a later one so many medians of the steps before it, and more where a trace is written.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from trainer.engines.command.bounds import Bounds
from trainer.engines.command.lines import Reading
from trainer.launchers import Processes
from trainer.recipe import Recipe
from trainer.recipe.sections import TrainerSettings

POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long is waited for a line, in seconds."""

    first_s: float  # for the first iteration
    all_s: float  # from the first iteration to the last
    medians: float = 20.0
    least_s: float = 60.0  # however short the steps are
    writing_s: float = 600.0  # around the profiled steps
    ending_s: float = 120.0  # from the last iteration to the process's end


def patience_with(recipe: Recipe, trainer: TrainerSettings) -> Patience:
    return Patience(first_s=trainer.first_step_s, all_s=recipe.burst.deadline_s)


@dataclass(kw_only=True)
class Followed:
    """How the wait ended. `overdue_s`: the limit that passed without a line; `lingered`: all steps done, no end."""

    overdue_s: float | None = None
    lingered: bool = False


@dataclass(kw_only=True)
class Follower:
    processes: Processes
    reading: Reading
    bounds: Bounds
    patience: Patience
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _tails: dict[Path, _Tail] = field(default_factory=dict, init=False)

    def follow(self) -> Followed:
        began = moved = self.clock()
        first: float | None = None
        seen = 0
        while self.processes.running:
            self.sleep(POLL_S)
            self.processes.check()
            self.read()
            now = self.clock()
            if self.processes.pending is not None:
                began = now
            if len(self.reading.iterations) != seen:
                seen, moved = len(self.reading.iterations), now
                first = now if first is None else first
            if max(self.reading.iterations, default=0) >= self.bounds.last:
                if now - moved > self.patience.ending_s:
                    return Followed(lingered=True)
                continue
            limit_s, since = self._limit(began, first, moved)
            if now - since > limit_s:
                return Followed(overdue_s=round(limit_s, 1))
        self.processes.check()
        self.read()
        return Followed()

    def _limit(self, began: float, first: float | None, moved: float) -> tuple[float, float]:
        """The next line's limit in seconds, and since when it counts."""
        if first is None:
            return self.patience.first_s, began
        if self.clock() - first > self.patience.all_s:
            return self.patience.all_s, first
        steps = self.reading.iterations.values()
        limit_s = max(self.patience.least_s, self.patience.medians * statistics.median(s.ms for s in steps) / 1e3)
        if self.bounds.traced and max(self.reading.iterations) + 1 >= self.bounds.measures.stop:
            limit_s = max(limit_s, self.patience.writing_s)
        return limit_s, moved

    def read(self) -> None:
        """Every line that has come since the last time."""
        for rank in range(self.processes.world_size):
            for path in self.processes.outputs(rank):
                for line in self._tails.setdefault(path, _Tail(path)).lines():
                    self.reading.feed(line)


class _Tail:
    """The new whole lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._rest = path, 0, b""

    def lines(self) -> list[str]:
        try:
            if self._path.stat().st_size == self._at:
                return []
            with self._path.open("rb") as file:
                file.seek(self._at)
                new = file.read()
        except OSError:
            return []
        self._at += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        return [line.decode(errors="replace") for line in whole]
