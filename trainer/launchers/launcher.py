"""Protocols of a launcher and of the ranks that it started, for whoever runs bursts on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.burst import Failure
from trainer.launchers.rank_observer import RankObserver
from trainer.rank_report import RankReport


class Launcher(Protocol):
    @property
    def python(self) -> str:
        """Returns the interpreter that runs modules of ours where the ranks are."""
        ...

    @property
    def keeps_ranks(self) -> bool:
        """Returns whether ranks may wait for the next burst where they run."""
        ...

    def start(
        self, argv: Sequence[str], *, env: dict[str, str], nodes: int, ranks_per_node: int, control: Path
    ) -> Processes:
        """Starts `argv` once a rank, with torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, …) and
        `env` added to our environment, and does not wait. Logs are kept in `control`, a folder of this start alone."""
        ...

    def adopt(self, *, nodes: int, ranks_per_node: int, control: Path) -> Processes | None:
        """Returns the processes that an earlier tuner started in `control` and that outlived it: they may wait, run or
        have ended. None where there are none."""
        ...


class Processes(Protocol):
    """Ranks that were started, and what they wrote."""

    @property
    def world_size(self) -> int: ...

    @property
    def control(self) -> Path: ...

    @property
    def rank_observer(self) -> RankObserver:
        """Returns the state of the ranks that can be observed from here."""
        ...

    @property
    def pending(self) -> str | None:
        """Returns why the ranks do not run yet, where a queue decides; None once they do. No deadline counts in this
        time."""
        ...

    @property
    def queued_s(self) -> float:
        """Returns how long a queue kept the ranks from running, in seconds."""
        ...

    @property
    def ran_s(self) -> float:
        """Returns how long the ranks have run, or ran, on their machines, in seconds; also for time without a tuner."""
        ...

    @property
    def running(self) -> bool:
        """Returns whether the launcher still runs."""
        ...

    @property
    def code(self) -> int | None:
        """Returns the exit code of the launcher, negative for a signal; None while it runs."""
        ...

    @property
    def log(self) -> str:
        """Returns the end of the launcher's own log."""
        ...

    @property
    def reported_deaths(self) -> dict[int, int]:
        """Returns the exit code by rank of each rank whose death the agents' logs name."""
        ...

    @property
    def ended_by(self) -> Failure | None:
        """Returns the failure for which a scheduler ended the ranks, where neither they nor we did: call it when they
        have ended."""
        ...

    def check(self) -> None:
        """Raises ToolError where the ranks can never run: a queue that will not take them, a control folder that a
        node does not see."""
        ...

    def blame(self, failure: Failure) -> Failure:
        """Returns the failure, with the node named where it is the machine's; the launcher avoids that node from now
        on."""
        ...

    def outputs(self, rank: int) -> list[Path]:
        """Returns the files that hold a rank's stdout and stderr; empty before it has any."""
        ...

    def beside(self, module: str, *words: str, timeout_s: float) -> None:
        """Runs a module of ours once on every machine of the ranks, and waits for it, but no longer than that."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Waits until all have ended, or the time is over."""
        ...

    def end(self) -> None:
        """Ends every process, whatever state it is in. May be called twice."""
        ...


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """Result of all ranks for one burst: every report, or the failure and the reports that exist."""

    reports: tuple[RankReport, ...]
    failure: Failure | None = None


class Ranks(Protocol):
    """A started set of ranks that waits for bursts. After a failure it is ended and cannot be used again."""

    @property
    def world_size(self) -> int: ...

    @property
    def alive(self) -> bool:
        """Returns whether another burst can be run on the ranks."""
        ...

    @property
    def queued_s(self) -> float:
        """Returns how long a queue kept the ranks from running, in seconds."""
        ...

    def run(self, burst_folder: Path, *, deadline_s: float) -> RankResult:
        """Hands every rank the burst in `burst_folder` (it reads `burst.json` there) and waits for the reports."""
        ...

    def end(self) -> None:
        """Ends every process of these ranks, whatever state they are in. May be called twice."""
        ...
