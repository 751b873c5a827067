"""Waits for a trainer's end, reads what it prints, and notices when it makes no more progress.

A hang is an iteration line that does not come in time. The first one has its own deadline (imports, compilation,
indexing of data); a later one may take a multiple of the median step, and longer while a trace is written.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainer.engines.command.lines import Reading
from trainer.frameworks.bounds import Bounds
from trainer.launchers import Processes
from trainer.launchers.stopwatch import Stopwatch
from trainer.recipe import Recipe
from trainer.recipe.sections import TrainerSettings

POLL_S = 0.2
LAST_LINE_STEPS = 3.0  # after the burst's time limit, the next line may take this many median steps
OUTPUT_FILES = 2  # output files per rank: stdout and stderr
BLOCK = 1 << 20  # bytes of a log that are read at a time; also the limit of an unfinished line
_LINE_END = re.compile(rb"[\r\n]")
# up to this number all ranks are followed; of more, the first and the last, which print, and the others at the end
MAX_FOLLOWED = 16


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Limits on the wait for a line, in seconds."""

    first_s: float  # limit for the first iteration
    # limit from the first iteration to the last; after it, the next line may take only LAST_LINE_STEPS median steps
    all_s: float
    medians: float = 20.0  # limit for a later line, in median steps
    least_s: float = 60.0  # least limit for a later line, however short the steps are
    writing_s: float = 600.0  # least limit around the profiled steps
    ending_s: float = 120.0  # limit from the last iteration to the process's end


def patience_with(recipe: Recipe, trainer: TrainerSettings) -> Patience:
    return Patience(first_s=trainer.first_step_s, all_s=recipe.burst.deadline_s)


@dataclass(kw_only=True)
class Followed:
    """The end of the wait.

    `overdue_s`: the limit that passed without a new line; `lingered`: all steps were done, but the process did not end.
    """

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
    _tails: dict[int, list[_Tail]] = field(default_factory=dict, init=False)  # by rank

    def follow(self) -> Followed:
        stopwatch = Stopwatch(clock=self.clock)
        started = moved = 0.0
        first: float | None = None
        seen = 0
        world = self.processes.world_size
        printing = range(world) if world <= MAX_FOLLOWED else (0, world - 1)
        while self.processes.running:
            self.sleep(POLL_S)
            self.processes.check()
            self.read(printing)
            held = self.processes.pending is not None
            now = stopwatch.look(held=held)
            if held:
                started = now
            if len(self.reading.iterations) != seen:
                seen, moved = len(self.reading.iterations), now
                first = now if first is None else first
            if min(self.reading.iterations, default=0) >= self.bounds.measures.stop:
                return Followed()  # the trainer resumed from a checkpoint
            if max(self.reading.iterations, default=0) >= self.bounds.last:
                if now - moved > self.patience.ending_s:
                    return Followed(lingered=True)
                continue
            limit_s, since = self._limit(now, started, first, moved)
            if now - since > limit_s:
                return Followed(overdue_s=round(limit_s, 1))
        self.processes.check()
        self.read()
        return Followed()

    def _limit(self, now: float, started: float, first: float | None, moved: float) -> tuple[float, float]:
        """Returns how many seconds the next line may take, and from which time they count."""
        if first is None:
            return self.patience.first_s, started
        steps = self.reading.iterations.values()
        median_s = statistics.median(step.ms for step in steps) / 1e3
        over = now - first > self.patience.all_s
        limit_s = max(self.patience.least_s, (LAST_LINE_STEPS if over else self.patience.medians) * median_s)
        if self.bounds.traced and max(self.reading.iterations) + 1 >= self.bounds.measures.stop:
            limit_s = max(limit_s, self.patience.writing_s)
        return limit_s, moved

    def read(self, ranks: Iterable[int] | None = None) -> None:
        """Reads the lines that these ranks (None: all ranks) have written since the last call."""
        for rank in range(self.processes.world_size) if ranks is None else ranks:
            if len(self._tails.get(rank, ())) < OUTPUT_FILES and not self.reading.iterations:
                known = {tail.path: tail for tail in self._tails.get(rank, ())}
                self._tails[rank] = [known.get(path) or _Tail(path) for path in self.processes.outputs(rank)]
            for tail in self._tails.get(rank) or [_Tail(path) for path in self.processes.outputs(rank)]:
                for line in tail.lines():
                    self.reading.feed(line)


class _Tail:
    """Reads the new complete lines of a growing file of any size. Carriage returns of progress bars end a line too."""

    def __init__(self, path: Path) -> None:
        self.path, self._at, self._rest = path, 0, b""

    def lines(self) -> Iterator[str]:
        try:
            if self.path.stat().st_size == self._at:
                return
            with self.path.open("rb") as file:
                file.seek(self._at)
                while new := file.read(BLOCK):
                    self._at += len(new)
                    *whole, self._rest = _LINE_END.split(self._rest + new)
                    yield from (line.decode(errors="replace") for line in whole if line)
                    self._rest = self._rest[-BLOCK:]
        except OSError:
            return
