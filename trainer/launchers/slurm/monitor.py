"""Observes our step or job by Slurm: how long it waits, what ended it, which node is at fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from trainer.burst import Failure, FailureKind
from trainer.errors import ToolError
from trainer.launchers.mailbox import agent_log, tail
from trainer.launchers.nodes import folder
from trainer.launchers.slurm import clients, states
from trainer.launchers.slurm.allocation import SETTLES_S, ending, over, refuse_ended
from trainer.launchers.slurm.queue import Queue, queue_path, slurm_log

_ASK_S = 10.0  # least seconds between two queries for the state of an allocation
_SHORT_S = 3.0  # a shorter wait is not reported


@dataclass(kw_only=True)
class SlurmMonitor:
    """Monitor of a start under Slurm; `trainer.launchers.nodes.processes.Monitor` documents its methods.

    `job`: the allocation of the step; None if a job was submitted. `queue_s`: how long it may wait.
    """

    control: Path
    name: str
    job: str | None
    queue_s: float | None
    say: Callable[[str], None] = clients.say
    _started: datetime = field(default_factory=datetime.now, init=False)
    _said: str | None = field(default=None, init=False)
    _state: str = field(default="", init=False)
    _suspension: str | None = field(default=None, init=False)
    _asked_at: float = field(default_factory=time.monotonic, init=False)
    _waiting_since: float = field(default_factory=time.monotonic, init=False)
    _waited_s: float = field(default=0.0, init=False)

    @property
    def log(self) -> str:
        return "\n".join(filter(None, (tail(slurm_log(self.control)), tail(agent_log(self.control)))))

    @property
    def queued_s(self) -> float:
        return self._waited_s

    def look(self, *, started: bool, ended: bool) -> str | None:
        log = self.log
        if not started and not ended and (refused := states.refusal(log)):
            if self.job is not None:
                refuse_ended(self.job)
            raise ToolError(f"Slurm refuses to start the ranks: {refused}", hint="see burst.launcher in the recipe")
        waiting = self._reason(None if started else self._waits_for(log))
        return waiting or (self._suspended() if started and not ended else None)

    def _suspended(self) -> str | None:
        """Returns why all processes are stopped now, if Slurm suspended the job; this time counts towards no deadline.

        Asks slurmctld rarely, and only if nothing else does.
        """
        queue = self._queue
        if queue is not None:
            job, self._state = queue.job, queue.state
        else:
            job = self.job or ""
            if time.monotonic() - self._asked_at > _ASK_S:
                self._asked_at = time.monotonic()
                self._state = (clients.job_record(job) or {}).get("JobState", self._state)
        words = f"job {job} is suspended" if self._state == states.SUSPENDED else None
        if words != self._suspension:
            self.say(words or f"job {job} continues")
            self._suspension = words
        return words

    def _waits_for(self, log: str) -> str | None:
        """Returns what Slurm waits for before it starts anything, else None. Raises ToolError if it waits too long or
        would wait forever."""
        queue = self._queue
        if queue is not None and states.is_pending(queue):
            self._refuse_for_ever(queue)
            return f"job {queue.job} is pending ({states.reason_of(queue)})"
        if self.job is not None and (found := list(states.STEP_WAITS.finditer(log))):
            return f"a step of job {self.job} waits ({found[-1]['reason']})"
        return None

    def _refuse_for_ever(self, queue: Queue) -> None:
        too_long = self.queue_s is not None and queue.waited_s > self.queue_s
        if too_long or (states.never(queue) and queue.waited_s > states.NEVER_S):
            raise ToolError(
                f"job {queue.job} has been pending for {queue.waited_s:.0f} s, for the reason {queue.reason}",
                hint="ask for what the partition has, or raise burst.launcher.slurm.queue_minutes",
            )

    def _reason(self, waits_for: str | None) -> str | None:
        """Reports to the user what the start waits for, if that lasts, and when the wait is over; returns the
        reason."""
        if waits_for is not None:
            self._waited_s = time.monotonic() - self._waiting_since
        news = waits_for is not None and waits_for != self._said and self._waited_s > _SHORT_S
        over = waits_for is None and self._said is not None
        if news or over:
            self.say(waits_for or f"Slurm started the ranks after {self._waited_s:.0f} s")
            self._said = waits_for
        return waits_for

    @property
    def _queue(self) -> Queue | None:
        return folder.read(queue_path(self.control), Queue)

    def ended_by(self, *, by_us: bool) -> Failure | None:
        """Returns the failure if Slurm ended the ranks: that of the allocation's end if it is over and no node failed;
        INFRASTRUCTURE if Slurm suspended the job; else that of a submitted job's state, or of the lines that
        Slurm printed."""
        log = self.log
        if self.job is not None and not states.reports_a_failed_node(log):
            why = ending(self.job) if states.reports_an_end(log) else over(self.job)
            if why:
                return Failure(kind=FailureKind.INTERRUPTED, evidence=why)
        if held := self._held:
            return Failure(kind=FailureKind.INFRASTRUCTURE, evidence=held)
        logged = states.failure_by_log(log)
        cancelled = logged is not None and logged[0].kind is FailureKind.INTERRUPTED and not by_us
        queue = self._last_state(cancelled=cancelled)
        accounts = (states.failure_by_queue(queue) if queue else None, logged[0] if logged else None)
        news = (each for each in accounts if each and not (by_us and each.kind is FailureKind.INTERRUPTED))
        return next(news, None)

    @property
    def _held(self) -> str | None:
        """Returns a message if Slurm suspended the job for a while, since a deadline that passed in that time means
        nothing."""
        job = self.job or (self._queue.job if self._queue is not None else None)
        record = clients.job_record(job) if job else None
        return f"Slurm suspended job {job}" if record and states.was_suspended(record, self._started) else None

    def _last_state(self, *, cancelled: bool) -> Queue | None:
        """Returns the last state of a submitted job, None for a step.

        Asks again, since ranks that were warned end before their job does; with `cancelled` until the job has ended and
        its state shows who cancelled it.
        """
        give_up = time.monotonic() + (SETTLES_S if cancelled else 0.0)
        while (queue := self._queue) is not None and not states.failure_by_queue(queue):
            if record := clients.job_record(queue.job):
                queue = msgspec.structs.replace(queue, state=states.settled(record, cut_off=cancelled))
            if queue.state not in states.RUNNING or time.monotonic() >= give_up:
                break
            time.sleep(clients.POLL_S)
        return queue

    def at_fault(self, hosts: Sequence[str]) -> str | None:
        logged = states.failure_by_log(self.log)
        if logged and logged[0].kind is FailureKind.INFRASTRUCTURE and logged[1]:
            return logged[1]
        gone = clients.down(hosts)
        return gone[0] if gone else None

    def end(self) -> None:
        ended = clients.cancel(self.name)
        left = [each for each in clients.listed(self.name) or () if "." in each] if ended else []
        if left:  # remaining entries are steps; a job that is still listed runs its epilogue
            raise ToolError(
                f"Slurm does not end {', '.join(left)}",
                hint="see `squeue`; a process blocked in the kernel keeps its node until the node is restarted",
            )
