"""Where ranks run. A launcher is one file here; `local` is torchrun on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainer.burst import Failure
from trainer.rank_report import RankReport


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What came back from all ranks for one burst: every report, or the failure and the reports there are."""

    reports: tuple[RankReport, ...]
    failure: Failure | None = None


class Ranks(Protocol):
    """A started set of ranks that waits for bursts. After a failure it is ended and cannot be used again."""

    @property
    def world_size(self) -> int: ...

    @property
    def alive(self) -> bool:
        """Whether another burst can be run on them."""
        ...

    def run(self, burst_folder: Path, *, deadline_s: float) -> RankResult:
        """Hands every rank the burst in `burst_folder` (it reads `burst.json` there) and waits for the reports."""
        ...

    def end(self) -> None:
        """Ends every process of these ranks, whatever state they are in. May be called twice."""
        ...
