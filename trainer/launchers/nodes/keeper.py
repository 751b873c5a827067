"""Keeper: runs on every node of a start; starts torchrun's agent and the node's ranks there, and reports on them.

`python -m trainer.launchers.nodes.keeper <control folder> <token> [<node's number> <its name>]`, started by Slurm,
which provides number and name itself, or over ssh. It proves that it sees the control folder, writes the address at
which the node is reached, runs the agent, observes the ranks through the kernel (a pid means nothing on another node)
and writes how each ended.

It ends everything on its node when the agent has ended, when it is asked to (by a file, by TERM), when the agent of
another node failed, when its parent process of Slurm or sshd is gone, and when the tuner's lease is no longer renewed,
since then nobody is left to ask it. A job that may outlive its tuner has a time limit of its own instead of a lease.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from trainer.failures import Death
from trainer.interpreter import module_command
from trainer.launchers.local import torchrun_command
from trainer.launchers.mailbox import agent_log, write_whole
from trainer.launchers.nodes import folder
from trainer.launchers.nodes.network import address_of, address_towards, interface_with
from trainer.launchers.oom_kills import oom_kills
from trainer.launchers.ports import free_port
from trainer.launchers.processes import OWNER, end_all, owner_text, sweep, this_process
from trainer.launchers.rank_observer import LocalRankObserver
from trainer.launchers.supervisor import AWAITED, adopt_orphans, family, reap, start

UNSEEN_WORDS = re.compile(r"moe-autotune: node (?P<node>\S+) does not see (?P<path>.+)")
UNSEEN = 79  # exit code of a keeper that does not see the control folder
_SEEN_S = 30.0  # time for a file to appear on another node: NFS caches a folder for up to 30 s
_MEET_S = 120.0  # time for the first node to start
_LOOK_S = 0.02  # interval of observing the ranks: shorter than the agent's, which reaps dead ones
_NOTES_S = 0.1  # interval of reading the control folder
LEASE_S = 30.0  # time without a renewed lease after which everything is ended
_STOPPED_S = 5.0  # a longer time between two looks means that this process was stopped, and perhaps the tuner with it
_OTHERS_S = 3.0  # after another node's agent failed: time for our ranks to report what they saw


def main(control: Path, token: str, number: int, name: str) -> int:
    parent = os.getppid()
    adopt_orphans()
    request = _await_start(control, token)
    if request is None:
        print(unseen(name, control), file=sys.stderr, flush=True)
        return UNSEEN
    started = _report_started(control, number, name, request)
    first = _await_first(control, parent)
    if first is None:
        return 1
    keeper = Keeper(control=control, number=number, start=request, parent=parent)
    _write_to(agent_log(folder.node_folder(control, number)))
    os.environ.update(environment(request, started, first))
    command = torchrun_command(
        request.argv,
        ranks=request.ranks_per_node,
        nodes=request.nodes,
        node=number,
        address=first.address,
        port=first.port,
        control=folder.node_folder(control, number),
        python=request.python,
    )
    keeper.keep(start(command))
    return 0


def unseen(node: str, control: Path) -> str:
    """Returns the message about a node that does not share the folder."""
    return f"moe-autotune: node {node} does not see {control}"


def _await_start(control: Path, token: str) -> folder.Start | None:
    give_up = time.monotonic() + _SEEN_S
    while time.monotonic() < give_up:
        found = folder.read(folder.start_path(control), folder.Start)
        if found is not None and found.token == token:
            return found
        time.sleep(_NOTES_S)
    return None


def _report_started(control: Path, number: int, name: str, request: folder.Start) -> folder.KeeperStarted:
    """Reports that this node has started, with its address; returns the report."""
    folder.node_folder(control, number).mkdir(exist_ok=True)
    own = address_of(request.interface) if request.interface else None
    started = folder.KeeperStarted(
        number=number,
        host=name,
        job=os.environ.get("SLURM_JOB_ID", ""),
        step=os.environ.get("SLURM_STEP_ID", ""),
        address=own or address_towards(_who_started()),
        port=free_port(),
        at_s=time.time(),
    )
    folder.write(folder.keeper_started_path(control, number), started)
    return started


def _who_started() -> str:
    """Returns the address of the machine that srun or ssh ran on."""
    theirs = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    return theirs or "127.0.0.1"


def _await_first(control: Path, parent: int) -> folder.KeeperStarted | None:
    give_up = time.monotonic() + _MEET_S
    while time.monotonic() < give_up and os.getppid() == parent:
        if (found := folder.read(folder.keeper_started_path(control, 0), folder.KeeperStarted)) is not None:
            return found
        time.sleep(_NOTES_S)
    return None


def environment(request: folder.Start, started: folder.KeeperStarted, first: folder.KeeperStarted) -> dict[str, str]:
    """Returns the environment of the agent and its ranks: the requested variables, their owner on this machine, and the
    network interface between the nodes, which gloo would otherwise derive from a host name that may not resolve."""
    own = started.address if started.number == first.number or request.interface else address_towards(first.address)
    interface = request.interface or interface_with(own)
    network = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    network |= {"NCCL_SOCKET_IFNAME": request.interface} if request.interface else {}
    theirs = {name: value for name, value in os.environ.items() if name in network}
    return {**network, **theirs, **request.env, OWNER: owner_text(this_process())}


def _write_to(path: Path) -> None:
    """Redirects stdout and stderr of this process, and thus of the agent, to the file."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(number, 1)
    os.dup2(number, 2)
    os.close(number)


@dataclass(kw_only=True)
class Keeper:
    """Keeps one node's agent and ranks. `parent`: the process of Slurm or sshd above this one."""

    control: Path
    number: int
    start: folder.Start
    parent: int
    lease_s: float = LEASE_S
    _started: float = field(default_factory=time.monotonic, init=False)
    _ended: dict[int, Death] = field(default_factory=dict, init=False)
    _looked_at_s: float = field(default_factory=time.time, init=False)
    _lease: tuple[str, float] = field(default_factory=lambda: ("", time.monotonic()), init=False)
    _asked_at: float = field(default_factory=time.monotonic, init=False)
    _stacks: int = field(default=0, init=False)
    _module_count: int = field(default=0, init=False)
    _modules: dict[int, int] = field(default_factory=dict, init=False)  # pid of a module that runs -> request number
    _kills_before: int = field(default_factory=oom_kills, init=False)
    _kills: int = field(default=0, init=False)
    _other_failed_at: float | None = field(default=None, init=False)

    def keep(self, agent: int) -> None:
        """Waits until everything on this node must end, ends it, and writes how the agent ended."""
        code = self._wait(agent)
        at_s = self._looked_at_s
        self._look()
        end_all(family)
        self._count_kills()
        folder.write(folder.node_end_path(self.control, self.number), folder.Ended(code=code, at_s=at_s))

    def _wait(self, agent: int) -> int | None:
        """Returns the agent's exit code if it ended by itself; None if it must be ended."""
        notes_at = 0.0
        while os.getppid() == self.parent:
            received = signal.sigtimedwait(AWAITED, _LOOK_S)
            self._look()
            exited = reap()
            for pid in exited.keys() & self._modules.keys():
                write_whole(folder.module_done_path(self.control, self._modules.pop(pid), self.number), b"")
            if agent in exited:
                return exited[agent]
            if received is not None and received.si_signo == signal.SIGTERM:
                return None
            if time.monotonic() - notes_at > _NOTES_S:
                notes_at = time.monotonic()
                if self._must_end():
                    return None
        return None

    @cached_property
    def _here(self) -> LocalRankObserver:
        return LocalRankObserver(control=self.control)

    @property
    def _ranks(self) -> range:
        return range(self.number * self.start.ranks_per_node, (self.number + 1) * self.start.ranks_per_node)

    def _look(self) -> None:
        """Records every rank of this node that has ended since the last call."""
        now_s = time.time()
        for rank in self._ranks:
            death = None if rank in self._ended else self._here.death(rank, seen_at_s=self._looked_at_s)
            if death is not None:
                self._ended[rank] = death
                self._count_kills()
                folder.write(folder.rank_end_path(self.control, rank), folder.Ended(code=death.code, at_s=death.at_s))
        self._looked_at_s = now_s

    def _count_kills(self) -> None:
        kills = oom_kills() - self._kills_before
        if kills != self._kills:
            self._kills = kills
            write_whole(folder.oom_path(self.control, self.number), str(kills).encode())

    def _must_end(self) -> bool:
        self._answer_stacks()
        self._start_module()
        self._count_kills()
        return folder.stop_path(self.control).exists() or self._is_abandoned() or self._other_agent_failed()

    def _is_abandoned(self) -> bool:
        """Returns whether the lease was not renewed for too long, or `outlives_s` is over instead, by this node's
        clock."""
        if self.start.outlives_s is not None:
            return time.monotonic() - self._started > self.start.outlives_s
        try:
            count = folder.lease_path(self.control).read_text()
        except OSError:
            count = self._lease[0]
        now = time.monotonic()
        if count != self._lease[0] or now - self._asked_at > _STOPPED_S:
            self._lease = (count, now)
        self._asked_at = now
        return now - self._lease[1] > self.lease_s

    def _other_agent_failed(self) -> bool:
        """Returns whether the agent of another node has failed or been ended, at least `_OTHERS_S` ago."""
        if self._other_failed_at is None:
            others = (n for n in range(self.start.nodes) if n != self.number)
            ends = (folder.read(folder.node_end_path(self.control, n), folder.Ended) for n in others)
            if any(end is not None and end.code != 0 for end in ends):
                self._other_failed_at = time.monotonic()
        return self._other_failed_at is not None and time.monotonic() - self._other_failed_at > _OTHERS_S

    def _start_module(self) -> None:
        request = folder.read(folder.module_path(self.control, self._module_count), folder.ModuleAsked)
        if request is not None:
            command = module_command(request.module, *request.words, python=self.start.python)
            self._modules[start(command)] = self._module_count
            self._module_count += 1

    def _answer_stacks(self) -> None:
        request = folder.read(folder.stacks_path(self.control, self._stacks), folder.StacksAsked)
        if request is None:
            return
        found = self._here.ask_for_stacks([rank for rank in request.ranks if rank in self._ranks])
        answer = folder.StacksAnswer(asked=sorted(found.ranks), stopped=sorted(found.stopped))
        folder.write(folder.stacks_answer_path(self.control, self._stacks, self.number), answer)
        self._stacks += 1


if __name__ == "__main__":
    if sys.argv[3:]:
        sweep()  # without a scheduler nobody else cleans up after a killed keeper
    own = sys.argv[3:] or [os.environ["SLURM_PROCID"], os.environ.get("SLURMD_NODENAME", os.uname().nodename)]
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(own[0]), own[1]))
