"""Launcher `local`: torchrun on this machine, under a supervisor, with ranks that stay up between bursts.

`LocalLauncher().start(…)` returns at once; the first `run` waits until the ranks are up. Whatever happens to a rank,
to torchrun or to this process, nothing stays behind: see `trainer.launchers.supervisor` and `processes.sweep`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import trainer
from trainer.errors import ToolError
from trainer.failures import Evidence, classify
from trainer.launchers import RankResult, mailbox
from trainer.launchers.oom_kills import oom_kills
from trainer.launchers.processes import (
    MARK,
    OWNER,
    POLL_S,
    end_all,
    is_alive,
    owner_text,
    sweep,
    this_process,
    with_mark,
)
from trainer.launchers.supervisor import exit_path
from trainer.launchers.watch import Watch, agent_log, tail, torchrun_logs

_GRACE_S = 1.5  # after the first error: time for the other ranks to say what they saw
# How often torchrun looks for dead ranks. Until it does, `watch.py` can read how a rank ended: seldom, so that our
# own polling nearly always comes first.
MONITOR_S = "0.5"
_POLITE_S = 5.0  # for idle ranks to end by themselves
_SUPERVISOR_S = 10.0  # for the supervisor to end everything; after that it is done from here


@dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """Starts ranks on this machine. `python` runs them; `startup_s` is how long they may take to import."""

    python: str = sys.executable
    startup_s: float = 300.0

    def start(
        self, *, world_size: int, env: dict[str, str], folder: Path, module: str = "trainer.worker"
    ) -> LocalRanks:
        """Starts `world_size` ranks of the module, `env` added to our environment, and does not wait for them.

        Each start keeps its control folder and logs in a new folder inside `folder`. First ends what a tuner that
        is no longer alive left on this machine.
        """
        sweep()
        mark = uuid.uuid4().hex
        control = folder.resolve() / mark[:12]
        control.mkdir(parents=True)
        command = torchrun_command(
            python=self.python, world_size=world_size, port=free_port(), control=control, module=module
        )
        supervisor = _start_supervisor(command, control, rank_environment(env, mark=mark))
        return LocalRanks(
            world_size=world_size, control=control, mark=mark, supervisor=supervisor, startup_s=self.startup_s
        )


def torchrun_command(*, python: str, world_size: int, port: int, control: Path, module: str) -> list[str]:
    """One node with static rendezvous: no c10d backend, which would resolve host names and keep threads alive."""
    return [
        *(python, "-m", "torch.distributed.run", "--nnodes", "1", "--node-rank", "0"),
        *("--nproc-per-node", str(world_size), "--master-addr", "127.0.0.1", "--master-port", str(port)),
        *("--max-restarts", "0", "--monitor-interval", MONITOR_S),
        *("--log-dir", str(torchrun_logs(control)), "--redirects", "3"),
        *("--module", module, str(control)),
    ]


def rank_environment(env: dict[str, str], *, mark: str) -> dict[str, str]:
    """Our environment, the recipe's additions, and the marks by which a process of ours is known.

    Ranks import the packages this process runs, wherever they are started from. gloo listens on loopback unless told
    otherwise: a host name that resolves to nowhere would stop it.
    """
    root = str(Path(trainer.__file__).parents[1])
    merged = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, **env}
    paths = [root, *filter(None, merged.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **merged,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONSAFEPATH": "1",
        MARK: mark,
        OWNER: owner_text(this_process()),
    }


def free_port() -> int:
    """A loopback port that was free a moment ago. If it is taken meanwhile, the failure is `infrastructure`."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _start_supervisor(command: list[str], control: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    owner = str(os.getpid())
    with agent_log(control).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "trainer.launchers.supervisor", owner, str(control), *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for the tuner alone
        )


@dataclass(kw_only=True)
class LocalRanks:
    """See `trainer.launchers.Ranks`."""

    world_size: int
    control: Path
    mark: str
    supervisor: subprocess.Popen[bytes]
    startup_s: float
    _requests: int = field(default=0, init=False)
    _idle: bool = field(default=False, init=False)
    _ended: bool = field(default=False, init=False)

    @property
    def alive(self) -> bool:
        """Whether another burst can be run: nothing was ended, and no rank that had arrived is gone."""
        arrived = (mailbox.arrived(self.control, rank) for rank in range(self.world_size))
        return not self._ended and self.supervisor.poll() is None and all(is_alive(p) for p in arrived if p)

    def run(self, burst_folder: Path, *, deadline_s: float) -> RankResult:
        """See `Ranks.run`. The deadline counts from when all ranks are up; starting has its own."""
        if self._ended:
            raise RuntimeError("these ranks were ended: start others")
        self._idle = False
        watch = Watch(self.control, burst_folder.resolve(), self.world_size)
        kills_before = oom_kills()
        watch.clear()
        self._ask(mailbox.Request(burst=str(burst_folder.resolve())))
        overdue_s = self._wait(watch, deadline_s)
        self._idle = watch.all_replied and not watch.in_trouble
        launcher_code = self._launcher_code()
        if not self._idle:
            watch.ask_for_stacks()
            self.end()
        failure = classify(
            Evidence(
                ranks=watch.evidence(),
                launcher_code=launcher_code,
                launcher_log=tail(agent_log(self.control)),
                overdue_s=overdue_s,
                oom_kills=oom_kills() - kills_before,
            )
        )
        if failure is not None:
            watch.keep_logs()
            self.end()
        return RankResult(reports=tuple(watch.reports[rank] for rank in sorted(watch.reports)), failure=failure)

    def _ask(self, request: mailbox.Request) -> None:
        mailbox.post(self.control, self._requests, request)
        self._requests += 1

    def _wait(self, watch: Watch, deadline_s: float) -> float | None:
        """Until all ranks replied, or it is clear that they will not. Returns the deadline, in s, if it passed."""
        limit_s, since, starting = self.startup_s, time.monotonic(), True
        while not (watch.all_replied or watch.troubled_for_s > _GRACE_S or self.supervisor.poll() is not None):
            if starting and watch.all_ready:
                limit_s, since, starting = deadline_s, time.monotonic(), False
            if time.monotonic() - since > limit_s:
                return limit_s
            time.sleep(POLL_S)
            watch.look()
        watch.look()  # what the ranks did before the supervisor ended
        return None

    def _launcher_code(self) -> int | None:
        """How torchrun's agent ended, if it did: its own code, or the signal that ended it or the supervisor."""
        supervisor_code = self.supervisor.poll()
        if supervisor_code is None:
            return None
        path = exit_path(self.control)
        return int(path.read_text()) if path.exists() else supervisor_code or -signal.SIGTERM

    def end(self) -> None:
        """See `Ranks.end`. Raises ToolError if the kernel does not let a process go."""
        if self._ended:
            return
        self._ended = True
        if self._idle:
            self._ask(mailbox.Request(stop=True))
            self._supervisor_gone_in(_POLITE_S)
        self.supervisor.terminate()
        self._supervisor_gone_in(_SUPERVISOR_S)
        left = end_all(lambda: with_mark(self.mark))
        if left:
            raise ToolError(
                f"processes {', '.join(str(process.pid) for process in left)} do not end when killed",
                hint="a driver or a file system holds them in the kernel: see `dmesg`, restart the node if they stay",
            )
        self.supervisor.wait()

    def _supervisor_gone_in(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.supervisor.wait(timeout_s)
