"""Protocol for observing ranks: through the kernel on this machine, through the keepers' files on several nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trainer.failures import Death
from trainer.launchers import mailbox
from trainer.launchers.oom_kills import oom_kills
from trainer.launchers.processes import Process, send, status_of


class RankObserver(Protocol):
    """Observes ranks that have arrived (see `mailbox.arrive`), by number."""

    def death(self, rank: int, *, seen_at_s: float) -> Death | None:
        """Returns how a rank that had arrived ended; None while it lives, or if it has not arrived.

        `seen_at_s`: the time of the caller's last look.
        """
        ...

    def ask_for_stacks(self, ranks: Iterable[int]) -> StackRequest:
        """Asks the ranks to write their threads' stacks to their logs; does not wait for it."""
        ...

    def kill(self, ranks: Iterable[int]) -> None:
        """Kills the ranks if this process can; does not wait until they are gone."""
        ...

    def oom_kills(self) -> int:
        """Returns how many processes the kernels of all machines of the ranks have killed for lack of memory so far."""
        ...


@dataclass(frozen=True, kw_only=True)
class StackRequest:
    """The ranks that were asked for their stacks, and those of them that cannot answer since SIGSTOP or a debugger
    holds them."""

    ranks: frozenset[int]
    stopped: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class LocalRankObserver:
    """Observes ranks of this machine.

    The exit code of a dead rank can be read until its parent waits for it; after that it is only known to be gone.
    """

    control: Path
    _arrived: dict[int, Process] = field(default_factory=dict, init=False)

    def death(self, rank: int, *, seen_at_s: float) -> Death | None:
        process = self._process(rank)
        if process is None:
            return None
        status = status_of(process.pid)
        if status is None or status.process != process:
            return Death(at_s=seen_at_s, code=None)
        code = os.waitstatus_to_exitcode(status.wait_status)
        return Death(at_s=seen_at_s, code=code) if status.dead else None

    def kill(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if process := self._process(rank):
                send(process, signal.SIGKILL)

    def ask_for_stacks(self, ranks: Iterable[int]) -> StackRequest:
        running, stopped = set(), set()
        for rank in ranks:
            process = self._process(rank)
            status = status_of(process.pid) if process else None
            if process and status and status.process == process:
                stopped |= {rank} if status.stopped else set()
                send(process, mailbox.STACKS)
                running.add(rank)
        return StackRequest(ranks=frozenset(running), stopped=frozenset(stopped))

    def oom_kills(self) -> int:
        return oom_kills()

    def _process(self, rank: int) -> Process | None:
        """Returns the rank's process, None before it has arrived; it is read once, as the folder may be on a
        network."""
        if rank not in self._arrived and (process := mailbox.arrived(self.control, rank)):
            self._arrived[rank] = process
        return self._arrived.get(rank)
