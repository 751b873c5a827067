"""Ranks of our own worker that stay up between bursts, with any launcher.

`start_ranks(…)` returns at once; the first `run` waits until the ranks are up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from trainer.errors import ToolError
from trainer.failures import Evidence, classify
from trainer.interpreter import module_command
from trainer.launchers import Launcher, Processes, RankResult, mailbox
from trainer.launchers.control import new_control, without_secrets
from trainer.launchers.processes import POLL_S
from trainer.launchers.stopwatch import Stopwatch
from trainer.launchers.watch import Watch
from trainer.secrets import masked

STARTUP_S = 300.0  # time limit for the imports of ranks
_GRACE_S = 1.5  # after the first error: time for the other ranks to report what they saw
# after a rank was killed: time for its parent, which may have been killed too, to report that at its end
_KILLED_S = 15.0
_NAMED_S = 60.0  # time for an agent whose ranks have all ended to name the one that failed
_POLITE_S = 20.0  # time for idle ranks to end by themselves, on a busy machine


def start_ranks(
    launcher: Launcher,
    *,
    nodes: int,
    ranks_per_node: int,
    env: dict[str, str],
    folder: Path,
    name: str | None = None,
    module: str = "trainer.worker",
    python: str | None = None,
    startup_s: float = STARTUP_S,
) -> WarmRanks:
    """Starts ranks of the module without waiting for them; `env` is added to our environment.

    Each start has its control folder and logs in a folder inside `folder`: one called `name`, else a new one.
    """
    control = new_control(folder) if name is None else folder.resolve() / name
    argv = module_command(module, str(control), python=python or launcher.python)
    processes = launcher.start(argv, env=env, nodes=nodes, ranks_per_node=ranks_per_node, control=control)
    return WarmRanks(processes=processes, startup_s=startup_s, once=not launcher.keeps_ranks)


@dataclass(kw_only=True)
class WarmRanks:
    """Ranks that stay up between bursts; `trainer.launchers.Ranks` documents the methods.

    `once`: they end by themselves after the first burst, even without a tuner.
    """

    processes: Processes
    startup_s: float = STARTUP_S
    once: bool = False
    _requests: int = field(default=0, init=False)
    _idle: bool = field(default=False, init=False)
    _ended: bool = field(default=False, init=False)

    @property
    def world_size(self) -> int:
        return self.processes.world_size

    @property
    def control(self) -> Path:
        return self.processes.control

    @property
    def queued_s(self) -> float:
        return self.processes.queued_s

    @property
    def alive(self) -> bool:
        """Returns whether another burst can be run: the ranks were not ended, and none that had arrived has died."""
        deaths = (self.processes.rank_observer.death(rank, seen_at_s=0.0) for rank in range(self.world_size))
        return not self._ended and self.processes.running and not any(deaths)

    def run(self, burst_folder: Path, *, deadline_s: float) -> RankResult:
        """Runs a burst, see `Ranks.run`.

        The deadline counts from when all ranks are up; starting has one of its own.
        """
        if self._ended:
            raise RuntimeError("these ranks were stopped: start new ones")
        watch = Watch(self.processes, burst_folder.resolve())
        kills_before = self.processes.rank_observer.oom_kills()
        watch.clear()
        self._ask(mailbox.Request(burst=str(burst_folder.resolve())))
        if self.once:
            self._ask(mailbox.Request(stop=True))
        return self._await(watch, deadline_s, kills_before)

    def resume(self, burst_folder: Path, *, deadline_s: float) -> RankResult:
        """Waits for the burst that another tuner gave to these ranks; returns the same as `run`."""
        return self._await(Watch(self.processes, burst_folder.resolve()), deadline_s, kills_before=0)

    def _await(self, watch: Watch, deadline_s: float, kills_before: int) -> RankResult:
        self._idle = False
        try:
            overdue_s = self._wait(watch, deadline_s)
        except ToolError:
            self.end()
            raise
        self._idle = watch.all_replied and not watch.is_failing
        launcher_code = self.processes.code
        if not self._idle:
            watch.ask_for_stacks()
            if launcher_code is None and watch.lacks_a_code:
                watch.kill_the_rest()
                self.processes.wait(_NAMED_S)
            self.end()
        failure = classify(
            Evidence(
                ranks=watch.evidence(),
                launcher_code=launcher_code,
                launcher_log=self.processes.log,
                overdue_s=overdue_s,
                ended_by=None if self._idle else self.processes.ended_by,
                oom_kills=self.processes.rank_observer.oom_kills() - kills_before,
            )
        )
        if failure is not None:
            failure = self.processes.blame(failure)
            failure = msgspec.structs.replace(failure, evidence=masked(failure.evidence))
            watch.keep_logs()
            self.end()
        watch.mask_logs()
        return RankResult(reports=tuple(watch.reports[rank] for rank in sorted(watch.reports)), failure=failure)

    def _ask(self, request: mailbox.Request) -> None:
        mailbox.post(self.control, self._requests, request)
        self._requests += 1

    def _wait(self, watch: Watch, deadline_s: float) -> float | None:
        """Waits until all ranks have replied, or it is clear that they will not.

        Returns the deadline, s, if it passed; else None.
        """
        stopwatch, starting = Stopwatch(), True
        limit_s, since = self.startup_s, 0.0
        while not (watch.all_replied or self._cause_is_known(watch) or not self.processes.running):
            self.processes.check()
            held = self.processes.pending is not None
            now = stopwatch.look(held=held)
            if held and starting:
                since = now
            if starting and watch.all_ready:
                limit_s, since, starting = deadline_s, now, False
            if now - since > limit_s:
                return limit_s
            time.sleep(POLL_S)
            watch.look()
        self.processes.check()
        watch.look()  # observes what the ranks did before the supervisor ended
        return None

    def _cause_is_known(self, watch: Watch) -> bool:
        """Returns whether a failure has lasted long enough for its cause to be reported, by the ranks and, if one was
        killed, by the process that started it."""
        unsure = watch.has_killed_rank and self.processes.code is None
        return watch.failing_for_s > (_KILLED_S if unsure else _GRACE_S)

    def end(self) -> None:
        """Ends the ranks, see `Ranks.end`. Idle ranks are asked to end first."""
        if self._ended:
            return
        self._ended = True
        if self._idle and not self.once:
            self._ask(mailbox.Request(stop=True))
        if self._idle:
            self.processes.wait(_POLITE_S)
        self.processes.end()
        without_secrets(self.control)
