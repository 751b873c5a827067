"""Ranks that were started on several nodes, as seen from the tuner."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import msgspec

from trainer.burst import Failure, FailureKind
from trainer.errors import ToolError
from trainer.launchers.agent import reported_deaths
from trainer.launchers.local import outputs_in
from trainer.launchers.mailbox import agent_log, tail
from trainer.launchers.nodes import folder
from trainer.launchers.nodes.avoid import avoid
from trainer.launchers.nodes.keeper import UNSEEN_WORDS
from trainer.launchers.nodes.rank_observer import NodeRankObserver
from trainer.launchers.processes import POLL_S
from trainer.launchers.supervisor import exit_path

_SUPERVISE_S = 90.0  # time for `supervise` to end everything: keepers, then scancel, then Slurm's own KillWait
_LOOK_S = 1.0  # least interval between two looks at the monitor, however often it is polled


class Monitor(Protocol):
    """Observes, by Slurm or ssh, what happens to the keepers on the nodes besides what they report themselves."""

    @property
    def log(self) -> str:
        """Returns the end of the monitor's own log."""
        ...

    def look(self, *, started: bool, ended: bool) -> str | None:
        """Returns, in words, what the start waits for, or that its ranks are suspended; None if nothing holds them.

        Raises ToolError if waiting cannot help. `started`: a node has started; `ended`: everything has ended.
        """
        ...

    @property
    def queued_s(self) -> float:
        """Returns how long the ranks waited in a queue, s."""
        ...

    def ended_by(self, *, by_us: bool) -> Failure | None:
        """Returns the failure if the scheduler or the connection ended the ranks; None if they ended by themselves or
        we ended them.

        `by_us`: we ended the rest, so that a state CANCELLED is ours.
        """
        ...

    def at_fault(self, hosts: Sequence[str]) -> str | None:
        """Returns the node that it reports as failed or no longer usable; None if there is none."""
        ...

    def end(self) -> None:
        """Ends what is left on the nodes after everything here has ended. Raises ToolError if it cannot."""
        ...


@dataclass(kw_only=True)
class NodesProcesses:
    """Ranks on several nodes; `trainer.launchers.Processes` documents its methods.

    `home`: the folder with the list of nodes to avoid.
    """

    nodes: int
    ranks_per_node: int
    control: Path
    home: Path
    mark: str
    monitor: Monitor
    supervise: subprocess.Popen[bytes]
    _ended: bool = field(default=False, init=False)
    _ended_here: bool = field(default=False, init=False)
    _looked_at: float = field(default=-_LOOK_S, init=False)
    _pending: str | None = field(default=None, init=False)
    _modules: int = field(default=0, init=False)

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @cached_property
    def rank_observer(self) -> NodeRankObserver:
        return NodeRankObserver(control=self.control, nodes=self.nodes, ranks_per_node=self.ranks_per_node)

    @property
    def running(self) -> bool:
        return not self._ended and self.supervise.poll() is None

    @property
    def pending(self) -> str | None:
        self.check()
        return self._pending

    @property
    def queued_s(self) -> float:
        return self.monitor.queued_s

    def check(self) -> None:
        """Checks the monitor, at most once per second. Raises ToolError if waiting cannot help."""
        if time.monotonic() - self._looked_at < _LOOK_S and self.running:
            return
        self._looked_at = time.monotonic()
        if found := UNSEEN_WORDS.search(self.monitor.log):
            raise ToolError(
                f"node {found['node']} does not see {found['path']}, which the ranks and the tuner share",
                hint="keep the study on a file system that all nodes mount (--study DIR), "
                "and mount it in the container too (container_mounts)",
            )
        started = any(folder.started_nodes(self.control, self.nodes))
        self._pending = self.monitor.look(started=started, ended=self._ended)

    @property
    def code(self) -> int | None:
        """Returns the exit code of the first agent that failed, as soon as it has; else, once the process that started
        the keepers has ended, 0 if all agents ended well or the code of that process; else None."""
        ends = self._node_ends
        if bad := _first_bad(ends):
            return ends[bad[0]].code
        supervise_code = self.supervise.poll()
        if supervise_code is None:
            return None
        if [end.code for end in ends.values()] == [0] * self.nodes:
            return 0
        path = exit_path(self.control)
        return int(path.read_text()) or 1 if path.exists() else supervise_code or -signal.SIGTERM

    @property
    def _node_ends(self) -> dict[int, folder.Ended]:
        """Returns how the agent of each node ended, for those that have."""
        ends = {n: folder.read(folder.node_end_path(self.control, n), folder.Ended) for n in range(self.nodes)}
        return {node: end for node, end in ends.items() if end is not None}

    @property
    def ran_s(self) -> float:
        """Returns the time from the start of the first node to the end of the last, or to now while one runs, s; 0
        before the first."""
        started = [each.at_s for each in folder.started_nodes(self.control, self.nodes)]
        ends = [end.at_s for end in self._node_ends.values()]
        last_s = max(ends) if len(ends) == self.nodes else time.time()
        return max(0.0, last_s - min(started)) if started else 0.0

    @property
    def log(self) -> str:
        """Returns each node's agent log, then the monitor's."""
        agents = [tail(agent_log(folder.node_folder(self.control, node))) for node in range(self.nodes)]
        return "\n".join([*filter(None, agents), self.monitor.log])

    @property
    def reported_deaths(self) -> dict[int, int]:
        """Returns {rank: exit code}, from the local ranks that each node's agent reports."""
        return {
            node * self.ranks_per_node + local: code
            for node in range(self.nodes)
            for local, code in reported_deaths(tail(agent_log(folder.node_folder(self.control, node)))).items()
        }

    @property
    def ended_by(self) -> Failure | None:
        """Returns the failure that the monitor reports."""
        return self.monitor.ended_by(by_us=self._ended_here)

    def outputs(self, rank: int) -> list[Path]:
        node, local = divmod(rank, self.ranks_per_node)
        return outputs_in(folder.node_folder(self.control, node), local)

    def blame(self, failure: Failure) -> Failure:
        if failure.kind is not FailureKind.INFRASTRUCTURE and not failure.killed:
            return failure
        node = self._node_at_fault(failure)
        if node is None:
            return failure
        if not failure.killed:
            avoid(self.home, node, failure.evidence)
        return msgspec.structs.replace(failure, node=node, evidence=f"node {node}: {failure.evidence}")

    def _node_at_fault(self, failure: Failure) -> str | None:
        """Returns the failed rank's node; else the one that the monitor names; else that of an agent that was killed;
        None if nothing names one."""
        hosts = {node.number: node.host for node in folder.started_nodes(self.control, self.nodes)}
        if failure.rank is not None:
            return hosts.get(failure.rank // self.ranks_per_node)
        if named := self.monitor.at_fault(list(hosts.values())):
            return named
        ends = self._node_ends
        killed = [node for node in _first_bad(ends) if (ends[node].code or 0) < 0]
        return hosts.get(killed[0]) if killed else None

    def run_on_every_node(self, module: str, *words: str, timeout_s: float) -> None:
        number, self._modules = self._modules, self._modules + 1
        folder.write(folder.module_path(self.control, number), folder.ModuleAsked(module=module, words=list(words)))
        waited = {node.number for node in folder.started_nodes(self.control, self.nodes)}
        give_up = time.monotonic() + timeout_s
        while self.running and time.monotonic() < give_up:
            if all(folder.module_done_path(self.control, number, node).exists() for node in waited):
                return
            time.sleep(POLL_S)

    def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.supervise.wait(timeout_s)

    def end(self) -> None:
        """Ends the ranks, see `Processes.end`. Raises ToolError if the monitor cannot end them either."""
        if self._ended:
            return
        self._ended, self._ended_here = True, self.supervise.poll() is None
        self.supervise.terminate()
        self.wait(_SUPERVISE_S)
        if self.supervise.poll() is None:
            self.supervise.kill()
            self.supervise.wait()
        self.monitor.end()


def _first_bad(ends: Mapping[int, folder.Ended]) -> list[int]:
    """Returns the nodes whose agent ended with an error or was killed, the first to end first."""
    return sorted((node for node, end in ends.items() if end.code), key=lambda node: ends[node].at_s)
