"""Launcher `local`: torchrun on this machine, under a supervisor.

Whatever happens to a rank, torchrun or this process, no process is left behind: see `trainer.launchers.supervisor` and
`processes.sweep`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from trainer.burst import Failure
from trainer.errors import ToolError
from trainer.interpreter import module_command, with_packages
from trainer.launchers.agent import reported_deaths
from trainer.launchers.mailbox import agent_log, tail
from trainer.launchers.ports import free_port
from trainer.launchers.processes import MARK, OWNER, end_all, owner_text, sweep, this_process, with_mark
from trainer.launchers.rank_observer import LocalRankObserver, RankObserver
from trainer.launchers.supervisor import exit_path

# Interval at which torchrun looks for dead ranks. `watch.py` can read how a rank ended only until torchrun looks: the
# interval is long, so that our own polling nearly always comes first.
MONITOR_S = "0.5"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}  # default: gloo fails if the host name does not resolve
_SUPERVISOR_S = 10.0  # time for the supervisor to end everything; then this process does it


@dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """Launcher of ranks on this machine; `trainer.launchers.Launcher` documents its methods."""

    keeps_ranks: bool = field(default=True, init=False)
    python: str = field(default=sys.executable, init=False)

    def start(
        self, argv: Sequence[str], *, env: dict[str, str], nodes: int, ranks_per_node: int, control: Path
    ) -> LocalProcesses:
        """Starts the ranks, after ending processes that an earlier, dead tuner left on this machine."""
        sweep()
        mark = uuid.uuid4().hex
        control.mkdir(parents=True, exist_ok=True)
        command = torchrun_command(argv, ranks=ranks_per_node, port=free_port("127.0.0.1"), control=control)
        supervisor = _start_supervisor(command, control, rank_environment(env, mark=mark, defaults=LOOPBACK))
        return LocalProcesses(world_size=ranks_per_node, control=control, mark=mark, supervisor=supervisor)

    def adopt(self, *, nodes: int, ranks_per_node: int, control: Path) -> None:
        """Returns None: ranks of this machine end with their tuner."""


def torchrun_command(
    argv: Sequence[str],
    *,
    ranks: int,
    port: int,
    control: Path,
    nodes: int = 1,
    node: int = 0,
    address: str = "127.0.0.1",
    python: str = sys.executable,
) -> list[str]:
    """Returns the command of one node's agent with static rendezvous.

    The c10d backend would resolve host names, keep threads alive and, on several nodes, could put rank 0 on any of
    them.
    """
    return [
        *module_command("trainer.launchers.torchrun", python=python),
        *("--nnodes", str(nodes), "--node-rank", str(node)),
        *("--nproc-per-node", str(ranks), "--master-addr", address, "--master-port", str(port)),
        *("--max-restarts", "0", "--monitor-interval", MONITOR_S),
        *("--log-dir", str(torchrun_logs(control)), "--redirects", "3"),
        *("--no-python", *argv),
    ]


def rank_environment(
    env: dict[str, str], *, mark: str, defaults: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Returns our environment, the additions, and the marks by which our processes are recognised.

    torchrun and the supervisor import the same packages as this process, wherever they are started from.
    """
    return {
        **with_packages({**defaults, **os.environ, **env}),
        "PYTHONSAFEPATH": "1",
        MARK: mark,
        OWNER: owner_text(this_process()),
    }


def _start_supervisor(command: list[str], control: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    owner = str(os.getpid())
    with agent_log(control).open("wb") as log:
        return subprocess.Popen(
            module_command("trainer.launchers.supervisor", owner, str(control), *command),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for the tuner alone
        )


def torchrun_logs(control: Path) -> Path:
    return control / "torchrun"


def outputs_in(control: Path, local_rank: int) -> list[Path]:
    """Returns the output files of a rank on the node whose agent logs to `control`."""
    found = torchrun_logs(control).glob(f"*/attempt_0/{local_rank}/std*.log")
    return sorted(found, reverse=True)  # stdout, then stderr: the last line is that of the exception


@dataclass(kw_only=True)
class LocalProcesses:
    """Ranks on this machine; `trainer.launchers.Processes` documents its methods."""

    world_size: int
    control: Path
    mark: str
    supervisor: subprocess.Popen[bytes]
    _ended: bool = field(default=False, init=False)
    _started: float = field(default_factory=time.monotonic, init=False)

    @cached_property
    def rank_observer(self) -> RankObserver:
        return LocalRankObserver(control=self.control)

    @property
    def pending(self) -> str | None:
        return None

    @property
    def queued_s(self) -> float:
        return 0.0

    @property
    def ran_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def running(self) -> bool:
        return not self._ended and self.supervisor.poll() is None

    @property
    def code(self) -> int | None:
        """Returns how torchrun's agent ended, None while it runs: its exit code, or the signal that ended it or the
        supervisor."""
        supervisor_code = self.supervisor.poll()
        if supervisor_code is None:
            return None
        path = exit_path(self.control)
        return int(path.read_text()) if path.exists() else supervisor_code or -signal.SIGTERM

    @property
    def log(self) -> str:
        return tail(agent_log(self.control))

    @property
    def reported_deaths(self) -> dict[int, int]:
        return reported_deaths(self.log)

    @property
    def ended_by(self) -> Failure | None:
        return None

    def check(self) -> None:
        """Does nothing: this machine can always start ranks."""

    def blame(self, failure: Failure) -> Failure:
        return failure

    def outputs(self, rank: int) -> list[Path]:
        return outputs_in(self.control, rank)

    def run_on_every_node(self, module: str, *words: str, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            environment = with_packages(os.environ)
            subprocess.run(module_command(module, *words), env=environment, timeout=timeout_s, check=False)

    def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.supervisor.wait(timeout_s)

    def end(self) -> None:
        """Ends the ranks, see `Processes.end`. Raises ToolError if the kernel does not release a process."""
        if self._ended:
            return
        self._ended = True
        self.supervisor.terminate()
        self.wait(_SUPERVISOR_S)
        left = end_all(lambda: with_mark(self.mark))
        if left:
            raise ToolError(
                f"processes {', '.join(str(process.pid) for process in left)} do not exit when killed",
                hint="a driver or a file system blocks them in the kernel: see `dmesg`, restart the node if they stay",
            )
        self.supervisor.wait()
