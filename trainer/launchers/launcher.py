"""Protocols of a launcher and of the ranks that it started, for code that runs bursts on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # not imported at run time, to keep the start of the supervisor short
    from trainer.burst import Failure
    from trainer.launchers.rank_observer import RankObserver
    from trainer.rank_report import RankReport


class Launcher(Protocol):
    @property
    def python(self) -> str:
        """Returns the interpreter that runs our modules on the ranks' machines."""
        ...

    @property
    def keeps_ranks(self) -> bool:
        """Returns whether ranks may stay up and wait for the next burst."""
        ...

    def start(
        self, argv: Sequence[str], *, env: dict[str, str], nodes: int, ranks_per_node: int, control: Path
    ) -> Processes:
        """Starts `argv` once per rank with torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, …) and
        `env` in addition to our environment (over ssh only some of it, `hosts.launcher.PASSED_ON`); does not wait. Logs
        go to `control`, a folder of this start alone."""
        ...

    def adopt(self, *, nodes: int, ranks_per_node: int, control: Path) -> Processes | None:
        """Returns the processes that an earlier tuner started in `control` and that outlived it, whether they wait, run
        or have ended; None if there are none."""
        ...


class Processes(Protocol):
    """Ranks that were started, and their output."""

    @property
    def world_size(self) -> int: ...

    @property
    def control(self) -> Path: ...

    @property
    def rank_observer(self) -> RankObserver:
        """Returns the observer of the ranks' state."""
        ...

    @property
    def pending(self) -> str | None:
        """Returns why the ranks do not run, if a queue or a suspension holds them; else None.

        This time counts towards no deadline.
        """
        ...

    @property
    def queued_s(self) -> float:
        """Returns how long the ranks waited in a queue, s."""
        ...

    @property
    def ran_s(self) -> float:
        """Returns how long the ranks ran on their machines, s, with or without a tuner."""
        ...

    @property
    def running(self) -> bool:
        """Returns whether the launching process still runs."""
        ...

    @property
    def code(self) -> int | None:
        """Returns the exit code of the launching process, negative for a signal; None while it runs."""
        ...

    @property
    def log(self) -> str:
        """Returns the end of the launching process's log."""
        ...

    @property
    def reported_deaths(self) -> dict[int, int]:
        """Returns {rank: exit code} for the ranks whose death the agents' logs report."""
        ...

    @property
    def ended_by(self) -> Failure | None:
        """Returns the failure if a scheduler or a lost connection ended the ranks; None if they themselves or we did.

        Call it after they have ended.
        """
        ...

    def check(self) -> None:
        """Raises ToolError if the ranks can never run: a queue that will not accept them, a control folder that a node
        cannot see."""
        ...

    def blame(self, failure: Failure) -> Failure:
        """Returns the failure, with the node named if a machine is at fault. The launcher avoids that node from now on,
        unless the failure is a kill of unknown origin."""
        ...

    def outputs(self, rank: int) -> list[Path]:
        """Returns the files with a rank's stdout and stderr; [] before there are any."""
        ...

    def run_on_every_node(self, module: str, *words: str, timeout_s: float) -> None:
        """Runs a module of ours once on every machine of the ranks, and waits for it at most `timeout_s`."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Waits until all have ended, at most `timeout_s`."""
        ...

    def end(self) -> None:
        """Ends every process, in any state. May be called twice."""
        ...


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """The result of one burst from all ranks: every report, or the failure with the reports that exist."""

    reports: tuple[RankReport, ...]
    failure: Failure | None = None


class Ranks(Protocol):
    """Ranks that were started and wait for bursts. After a failure they are ended and cannot be used again."""

    @property
    def world_size(self) -> int: ...

    @property
    def alive(self) -> bool:
        """Returns whether the ranks can run another burst."""
        ...

    @property
    def queued_s(self) -> float:
        """Returns how long the ranks waited in a queue, s."""
        ...

    def run(self, burst_folder: Path, *, deadline_s: float) -> RankResult:
        """Gives every rank the burst in `burst_folder` (they read `burst.json` there) and waits for the reports."""
        ...

    def end(self) -> None:
        """Ends every process of these ranks, in any state. May be called twice."""
        ...
