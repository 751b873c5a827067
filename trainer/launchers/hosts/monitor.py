"""Reads ssh's output for hosts that cannot be reached and hosts that were lost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.burst import Failure, FailureKind
from trainer.errors import ToolError
from trainer.launchers.mailbox import agent_log, tail

LOST = re.compile(r"moe-autotune: host (?P<host>\S+) is lost: ssh ended with (?P<code>-?\d+)")
# errors that another try does not change, in the words of ssh(1) and of the other host's shell
REFUSED = re.compile(
    r".*(?:Permission denied|Host key verification failed|Could not resolve hostname|Bad configuration option"
    r"|No such file or directory|[Nn]o module named|command not found).*"
)


@dataclass(frozen=True, kw_only=True)
class HostsMonitor:
    """Monitor of a start over ssh; `trainer.launchers.nodes.processes.Monitor` documents its methods."""

    control: Path
    queued_s: float = 0.0

    @property
    def log(self) -> str:
        return tail(agent_log(self.control))

    def look(self, *, started: bool, ended: bool) -> None:
        log = self.log
        lost = LOST.search(log)
        if lost and not started and not ended and (refused := REFUSED.search(log)):
            raise ToolError(
                f"no keeper can be started on {lost['host']}: {refused[0].strip()}",
                hint=f"`ssh {lost['host']} true` has to work without a password, and the host to have the same Python "
                "and packages under the same paths (burst.launcher.python)",
            )

    def ended_by(self, *, by_us: bool) -> Failure | None:
        found = LOST.search(self.log)
        if found is None:
            return None
        evidence = f"host {found['host']} was lost: ssh ended with {found['code']}"
        return Failure(kind=FailureKind.INFRASTRUCTURE, evidence=evidence)

    def at_fault(self, hosts: Sequence[str]) -> str | None:
        found = LOST.search(self.log)
        return found["host"] if found else None

    def end(self) -> None:
        """Does nothing: a keeper that loses its connection ends its ranks."""
