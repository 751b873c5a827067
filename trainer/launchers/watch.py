"""Observes the ranks while a burst runs: which arrived, replied and died, and in which order.

It polls about 50 times per second. See `trainer.launchers.rank_observer` for what can be observed; if that does not
show how a rank ended, the log of torchrun's agent does.
"""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

from trainer.burst import BurstPhase
from trainer.failures import STACK, Death, RankEvidence
from trainer.launchers import Processes, mailbox
from trainer.rank_report import RankReport, phase_path, report_path
from trainer.secrets import mask_file

_STACKS_S = 5.0  # a rank that has not written its stacks by then, on a machine however busy, will not


class Watch:
    """The ranks of one start during one burst.

    `look` observes them; the other methods return what has been observed.
    """

    def __init__(self, processes: Processes, burst_folder: Path) -> None:
        self._processes, self._control, self._burst = processes, processes.control, burst_folder
        self._ranks = range(processes.world_size)
        self.reports: dict[int, RankReport] = {}
        self.deaths: dict[int, Death] = {}
        self._stopped: set[int] = set()
        self._killed: set[int] = set()
        self._failing_since: float | None = None
        self._looked_at_s = time.time()

    def clear(self) -> None:
        """Removes files of an earlier attempt at this burst, which could be mistaken for this one's."""
        for rank in self._ranks:
            for path in (report_path, phase_path, mailbox.log_path):
                path(self._burst, rank).unlink(missing_ok=True)

    def look(self) -> None:
        started_s = time.time()
        for rank in self._ranks:
            if rank not in self.reports:
                self._look_at(rank)
        self._looked_at_s = started_s
        if self._failing_since is None and self.is_failing:
            self._failing_since = time.monotonic()

    def _look_at(self, rank: int) -> None:
        death = self._processes.rank_observer.death(
            rank, seen_at_s=self._looked_at_s
        )  # read before the report, since a rank may reply and then end
        if report := mailbox.report_of(self._burst, rank):
            self.reports[rank] = report
            self.deaths.pop(rank, None)
        elif death is not None:
            self.deaths.setdefault(rank, death)

    @property
    def all_ready(self) -> bool:
        return all(mailbox.is_ready(self._control, rank) for rank in self._ranks)

    @property
    def all_replied(self) -> bool:
        return all(rank in self.reports for rank in self._ranks)

    @property
    def is_failing(self) -> bool:
        """Returns whether a rank died or replied with an error, so that the burst will fail."""
        return bool(self.deaths) or any(report.error is not None for report in self.reports.values())

    @property
    def has_killed_rank(self) -> bool:
        """Returns whether a rank was killed, or is gone without its end having been observed."""
        return any(death.code in (None, -signal.SIGKILL) for death in self.deaths.values())

    @property
    def lacks_a_code(self) -> bool:
        """Returns whether a rank is gone whose exit code is known neither here nor from the agent."""
        named = self._processes.reported_deaths
        return not named and any(death.code is None for death in self.deaths.values())

    def kill_the_rest(self) -> None:
        """Kills the ranks that still run.

        The agent reports the rank that failed only after all others have ended, which one that ignores SIGTERM delays.
        """
        self._killed = set(self._ranks) - set(self.deaths)
        self._processes.rank_observer.kill(self._killed)

    @property
    def failing_for_s(self) -> float:
        """Returns the seconds since `is_failing`; 0 while nothing is wrong."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    def ask_for_stacks(self) -> None:
        """Asks every silent rank for its threads' stacks, and waits until they are in its log, at most `_STACKS_S`."""
        request = self._processes.rank_observer.ask_for_stacks(set(self._ranks) - set(self.reports) - set(self.deaths))
        self._stopped |= request.stopped
        self._await_stacks(sorted(request.ranks - request.stopped))

    def _await_stacks(self, ranks: list[int]) -> None:
        """Waits until every rank has written its stacks completely; a rank that has not started by `_STACKS_S` will
        not."""
        give_up = time.monotonic() + _STACKS_S
        before: list[int] = []
        while time.monotonic() < give_up:
            written = [self._output(rank).count(STACK.encode()) and len(self._output(rank)) for rank in ranks]
            if all(written) and written == before:
                return
            before = written
            time.sleep(mailbox.POLL_S)

    def keep_logs(self) -> None:
        """Copies the agent's log, and the ranks' output before the burst redirected it, to the burst's logs."""
        for rank in self._ranks:
            target = mailbox.log_path(self._burst, rank)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self._output(rank))
        mailbox.log_path(self._burst, 0).with_name("agent.log").write_text(self._processes.log)

    def mask_logs(self) -> None:
        """Masks secrets in the burst's logs, once nothing is searched in them any more."""
        for path in mailbox.log_path(self._burst, 0).parent.glob("*.log"):
            mask_file(path)

    def evidence(self) -> list[RankEvidence]:
        """Returns the evidence of each rank. Call it after the ranks have ended, so that their logs are complete."""
        named = self._processes.reported_deaths
        return [
            RankEvidence(
                rank=rank,
                phase=_phase(self._burst, rank),
                report=self.reports.get(rank),
                death=None if rank in self.reports else self._completed_death(rank, named),
                log=self._output(rank)[-mailbox.TAIL_BYTES :].decode(errors="replace"),
                stopped=rank in self._stopped,
            )
            for rank in self._ranks
        ]

    def _completed_death(self, rank: int, named: dict[int, int]) -> Death | None:
        """Returns the rank's death, completed from the agent's log: the agent reports the rank that failed and ends the
        others by TERM. A rank that ends with code 0 is no failure to the agent: it then names only those that
        `kill_the_rest` killed."""
        failed = {r: code for r, code in named.items() if not (r in self._killed and code == -signal.SIGKILL)}
        seen = self.deaths.get(rank)
        if seen is not None and seen.code is None and named:
            return replace(seen, code=failed.get(rank, -signal.SIGTERM if failed else 0))
        if seen is None and rank in failed:  # the rank never arrived: it ended before those that did
            return Death(at_s=0.0, code=failed[rank])
        return seen

    def _output(self, rank: int) -> bytes:
        """Returns the rank's output of this burst; that of its start if it has not started the burst."""
        own = mailbox.log_path(self._burst, rank)
        return b"".join(path.read_bytes() for path in ([own] if own.exists() else self._processes.outputs(rank)))


def _phase(burst_folder: Path, rank: int) -> BurstPhase:
    path = phase_path(burst_folder, rank)
    name = path.read_text().strip() if path.exists() else ""
    return BurstPhase(name) if name in list(BurstPhase) else BurstPhase.START
