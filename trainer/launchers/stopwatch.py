"""The time by which a burst's deadlines count.

Not while a queue or a suspension holds the ranks, and not while this process is stopped itself: Slurm suspends a job by
SIGSTOP for every process of it, a tuner inside it too, and clocks go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

STOPPED_S = 60.0  # between two looks: more than what a look waits for (programs of Slurm that do not answer), as a rule
_COUNTED_S = 30.0  # of more than that: less than a trainer's next line may take, so that a suspension is no hang


@dataclass(kw_only=True)
class Stopwatch:
    """`now`: seconds since its start that count, as of the last look."""

    clock: Callable[[], float] = time.monotonic
    now: float = field(default=0.0, init=False)
    _looked_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._looked_at = self.clock()

    def look(self, *, held: bool) -> float:
        """`now`, which the time since the last look is added to unless the ranks were held meanwhile.

        Of a time too long half a minute is: a deadline passes also where every look takes so long.
        """
        at = self.clock()
        since, self._looked_at = at - self._looked_at, at
        if not held:
            self.now += since if since <= STOPPED_S else _COUNTED_S
        return self.now
