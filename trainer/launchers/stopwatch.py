"""The time that counts towards a burst's deadlines.

It excludes time in which a queue or a suspension holds the ranks, and time in which this process itself is stopped:
Slurm suspends a job by SIGSTOP to each of its processes, perhaps the tuner too, while clocks run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

# a longer time between two looks means that this process was stopped: a look itself waits less, even if Slurm's
# programs do not answer
STOPPED_S = 60.0
# part of such a long time that counts: less than a trainer's next line may take, so that a suspension is not a hang
_COUNTED_S = 30.0


@dataclass(kw_only=True)
class Stopwatch:
    """`now`: seconds that count, as of the last call of `look`."""

    clock: Callable[[], float] = time.monotonic
    now: float = field(default=0.0, init=False)
    _looked_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._looked_at = self.clock()

    def look(self, *, held: bool) -> float:
        """Adds the time since the last look to `now`, unless the ranks were held, and returns it.

        Of a time above `STOPPED_S` only `_COUNTED_S` is added, which still lets a deadline pass if every look takes
        that long.
        """
        at = self.clock()
        since, self._looked_at = at - self._looked_at, at
        if not held:
            self.now += since if since <= STOPPED_S else _COUNTED_S
        return self.now
