"""Ranks that Slurm started on its nodes, seen from the tuner."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from trainer.burst import Failure, FailureKind
from trainer.errors import ToolError
from trainer.launchers.agent import deaths_told
from trainer.launchers.local import outputs_in
from trainer.launchers.mailbox import agent_log, tail
from trainer.launchers.processes import POLL_S
from trainer.launchers.slurm import folder, states
from trainer.launchers.slurm.avoid import avoid
from trainer.launchers.slurm.clients import cancel, down
from trainer.launchers.slurm.sight import SightOfNodes
from trainer.launchers.supervisor import exit_path

_SUPERVISE_S = 90.0  # for `supervise` to end everything: keepers, then scancel, then Slurm's own KillWait
_LOOK_S = 1.0  # at Slurm's log and the queue, by whoever polls often
_SHORT_S = 3.0  # a wait that is not worth a word
_NEVER_S = 30.0  # for a reason to wait for ever to be more than the scheduler's first word


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(kw_only=True)
class SlurmProcesses:
    """See `trainer.launchers.Processes`. `job`: the allocation that the step is in; None where a job was submitted."""

    nodes: int
    ranks_per_node: int
    control: Path
    home: Path
    name: str
    mark: str
    job: str | None
    queue_s: float | None
    supervise: subprocess.Popen[bytes]
    say: Callable[[str], None] = say
    _ended: bool = field(default=False, init=False)
    _ended_here: bool = field(default=False, init=False)
    _looked_at: float = field(default=-_LOOK_S, init=False)
    _pending: str | None = field(default=None, init=False)
    _said: str | None = field(default=None, init=False)
    _waiting_since: float = field(default_factory=time.monotonic, init=False)
    _waited_s: float = field(default=0.0, init=False)
    _besides: int = field(default=0, init=False)

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    @cached_property
    def sight(self) -> SightOfNodes:
        return SightOfNodes(control=self.control, nodes=self.nodes, ranks_per_node=self.ranks_per_node)

    # ---- how far it is

    @property
    def running(self) -> bool:
        return not self._ended and self.supervise.poll() is None

    @property
    def pending(self) -> str | None:
        self._look()
        return self._pending

    @property
    def queued_s(self) -> float:
        """Seconds until the ranks could be started, by a queue's doing."""
        return self._waited_s

    def check(self) -> None:
        self._look()

    def _look(self) -> None:
        """At most once a second. ToolError where waiting is of no use."""
        if time.monotonic() - self._looked_at < _LOOK_S and self.running:
            return
        self._looked_at = time.monotonic()
        log = self._slurm_log
        if found := states.UNSEEN.search(log):
            raise ToolError(
                f"node {found['node']} does not see {found['path']}, which the ranks and the tuner share",
                hint="keep the study on a file system that all nodes mount (--study DIR), "
                "and mount it in the container too (container_mounts)",
            )
        came = any(folder.nodes_that_came(self.control, self.nodes))
        if not came and not self._ended and (refused := states.refusal(log)):
            raise ToolError(f"Slurm refuses to start the ranks: {refused}", hint="see burst.launcher in the recipe")
        self._see_queue(self._waits_for(log) if not came else None)

    def _waits_for(self, log: str) -> str | None:
        """What Slurm waits for before it starts anything."""
        queue = self._queue
        if queue is not None and states.is_pending(queue):
            self._refuse_for_ever(queue)
            reason = "not looked at yet" if queue.reason in ("", "None") else queue.reason
            return f"job {queue.job} is pending ({reason})"
        if self.job is not None and (found := list(states.STEP_WAITS.finditer(log))):
            return f"a step of job {self.job} waits ({found[-1]['reason']})"
        return None

    def _refuse_for_ever(self, queue: folder.Queue) -> None:
        too_long = self.queue_s is not None and queue.waited_s > self.queue_s
        if too_long or (states.never(queue) and queue.waited_s > _NEVER_S):
            raise ToolError(
                f"job {queue.job} has been pending for {queue.waited_s:.0f} s, for the reason {queue.reason}",
                hint="ask for what the partition has, or raise burst.launcher.slurm.queue_minutes",
            )

    def _see_queue(self, waits_for: str | None) -> None:
        """Says what is waited for, where it lasts, and that it is over."""
        if waits_for is not None:
            self._waited_s = time.monotonic() - self._waiting_since
        news = waits_for is not None and waits_for != self._said and self._waited_s > _SHORT_S
        over = waits_for is None and self._said is not None
        if news or over:
            self.say(waits_for or f"Slurm started the ranks after {self._waited_s:.0f} s")
            self._said = waits_for
        self._pending = waits_for

    @property
    def _queue(self) -> folder.Queue | None:
        return folder.read(folder.queue_path(self.control), folder.Queue)

    # ---- how it ended

    @property
    def code(self) -> int | None:
        """That of the first agent that ended badly, as soon as it has; else of what asked Slurm."""
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
        """How the agent of each node ended, of those that have."""
        ends = {n: folder.read(folder.node_end_path(self.control, n), folder.Ended) for n in range(self.nodes)}
        return {node: end for node, end in ends.items() if end is not None}

    @property
    def log(self) -> str:
        """Each node's agent, then Slurm."""
        agents = [tail(agent_log(folder.node_folder(self.control, node))) for node in range(self.nodes)]
        return "\n".join([*filter(None, agents), self._slurm_log])

    @property
    def _slurm_log(self) -> str:
        return "\n".join(filter(None, (tail(folder.slurm_log(self.control)), tail(agent_log(self.control)))))

    @property
    def deaths_told(self) -> dict[int, int]:
        """The agent of each node speaks of its local ranks."""
        return {
            node * self.ranks_per_node + local: code
            for node in range(self.nodes)
            for local, code in deaths_told(tail(agent_log(folder.node_folder(self.control, node)))).items()
        }

    @property
    def ended_by(self) -> Failure | None:
        """By the state of a job of its own, else by the lines that Slurm prints; that we ended it is no news."""
        queue = self._queue
        told = states.told_by_log(self._slurm_log)
        found = (states.told_by_queue(queue) if queue is not None else None) or (told[0] if told else None)
        ours = self._ended_here and found is not None and found.kind is FailureKind.INTERRUPTED
        return None if ours else found

    def outputs(self, rank: int) -> list[Path]:
        node, local = divmod(rank, self.ranks_per_node)
        return outputs_in(folder.node_folder(self.control, node), local)

    def blame(self, failure: Failure) -> Failure:
        if failure.kind is not FailureKind.INFRASTRUCTURE:
            return failure
        node = self._node_at_fault(failure)
        if node is None:
            return failure
        avoid(self.home, node, failure.evidence)
        return msgspec.structs.replace(failure, evidence=f"node {node}: {failure.evidence}")

    def _node_at_fault(self, failure: Failure) -> str | None:
        """The rank's; else the one that Slurm names or cannot use any more; else that of an agent that was killed."""
        hosts = {came.number: came.host for came in folder.nodes_that_came(self.control, self.nodes)}
        if failure.rank is not None:
            return hosts.get(failure.rank // self.ranks_per_node)
        told = states.told_by_log(self._slurm_log)
        if told and told[0].kind is FailureKind.INFRASTRUCTURE and told[1]:
            return told[1]
        if gone := down(list(hosts.values())):
            return gone[0]
        ends = self._node_ends
        killed = [node for node in _first_bad(ends) if (ends[node].code or 0) < 0]
        return hosts.get(killed[0]) if killed else None

    def beside(self, module: str, *words: str, timeout_s: float) -> None:
        number, self._besides = self._besides, self._besides + 1
        folder.write(folder.beside_path(self.control, number), folder.BesideAsked(module=module, words=list(words)))
        waited = {came.number for came in folder.nodes_that_came(self.control, self.nodes)}
        give_up = time.monotonic() + timeout_s
        while self.running and time.monotonic() < give_up:
            if all(folder.beside_done_path(self.control, number, node).exists() for node in waited):
                return
            time.sleep(POLL_S)

    # ---- its end

    def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.supervise.wait(timeout_s)

    def end(self) -> None:
        """See `Processes.end`. ToolError if Slurm cannot end it either."""
        if self._ended:
            return
        self._ended, self._ended_here = True, self.supervise.poll() is None
        self.supervise.terminate()
        self.wait(_SUPERVISE_S)
        if self.supervise.poll() is None:
            self.supervise.kill()
            self.supervise.wait()
        left = cancel(self.name, job=self.job)
        if left and cancel(self.name, job=self.job, gone_s=0.0):
            raise ToolError(
                f"Slurm does not end {', '.join(left)}",
                hint="see `squeue`; a process held in the kernel keeps its node until the node is restarted",
            )


def _first_bad(ends: Mapping[int, folder.Ended]) -> list[int]:
    """Nodes whose agent ended with an error or was killed, the first first."""
    return sorted((node for node, end in ends.items() if end.code), key=lambda node: ends[node].at_s)
