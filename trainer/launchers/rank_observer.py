"""Protocol for observing ranks: through the kernel on this machine, through the keepers' files on many nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.failures import Death
from trainer.launchers import mailbox
from trainer.launchers.oom_kills import oom_kills
from trainer.launchers.processes import send, status_of


class RankObserver(Protocol):
    """Ranks that have arrived (see `mailbox.arrive`), by number."""

    def death(self, rank: int, *, seen_at_s: float) -> Death | None:
        """Returns how a rank that had arrived ended, None while it lives. `seen_at_s`: when the caller last looked."""
        ...

    def ask_for_stacks(self, ranks: Iterable[int]) -> Asked:
        """Has the ranks write their threads' stacks to their logs, and does not wait until they have."""
        ...

    def kill(self, ranks: Iterable[int]) -> None:
        """Kills the ranks, where this process can do so itself, without waiting until they are gone."""
        ...

    def oom_kills(self) -> int:
        """Returns how many processes the kernels of all machines of the ranks have killed for memory: counts up."""
        ...


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Ranks that were asked for their stacks, and which of them cannot answer, being held by SIGSTOP or a debugger."""

    ranks: frozenset[int]
    stopped: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class LocalRankObserver:
    """Ranks of this machine. A dead rank can be read, with its exit code, until the one that started it waits for it;
    after that only that it is gone."""

    control: Path

    def death(self, rank: int, *, seen_at_s: float) -> Death | None:
        process = mailbox.arrived(self.control, rank)
        if process is None:
            return None
        status = status_of(process.pid)
        if status is None or status.process != process:
            return Death(at_s=seen_at_s, code=None)
        code = os.waitstatus_to_exitcode(status.wait_status)
        return Death(at_s=seen_at_s, code=code) if status.dead else None

    def kill(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if process := mailbox.arrived(self.control, rank):
                send(process, signal.SIGKILL)

    def ask_for_stacks(self, ranks: Iterable[int]) -> Asked:
        asked, stopped = set(), set()
        for rank in ranks:
            process = mailbox.arrived(self.control, rank)
            status = status_of(process.pid) if process else None
            if process and status and status.process == process:
                stopped |= {rank} if status.stopped else set()
                send(process, mailbox.STACKS)
                asked.add(rank)
        return Asked(ranks=frozenset(asked), stopped=frozenset(stopped))

    def oom_kills(self) -> int:
        return oom_kills()
