"""Real logs of failed runs, classified as a burst would."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.places import TRAINER_LOGS, WITHOUT_SHARED
from trainer.burst import BurstPhase, Failure, FailureKind
from trainer.engines.command.evidence import evidence_of
from trainer.failures import Evidence, classify
from trainer.launchers.agent import reported_deaths
from trainer.launchers.rank_observer import LocalRankObserver, RankObserver

pytestmark = pytest.mark.skipif(not TRAINER_LOGS.is_dir(), reason=WITHOUT_SHARED)


@dataclass(kw_only=True)
class Recorded:
    """Processes that have ended: what each rank wrote, and what started them."""

    control: Path
    log: str
    texts: dict[int, str]
    world_size: int = 2
    running: bool = False
    code: int | None = 1
    paths: dict[int, Path] = field(default_factory=dict)
    pending: None = None
    ended_by: None = None
    queued_s: float = 0.0

    @property
    def rank_observer(self) -> RankObserver:
        return LocalRankObserver(control=self.control)

    @property
    def reported_deaths(self) -> dict[int, int]:
        return reported_deaths(self.log)

    @property
    def ran_s(self) -> float:
        return 1.0

    def check(self) -> None: ...

    def blame(self, failure: Failure) -> Failure:
        return failure

    def outputs(self, rank: int) -> list[Path]:
        path = self.control / f"rank{rank}.log"
        path.write_text(self.texts.get(rank, ""))
        return [path]

    def run_on_every_node(self, module: str, *words: str, timeout_s: float) -> None: ...

    def wait(self, timeout_s: float) -> None: ...

    def end(self) -> None: ...


def recorded(name: str, folder: Path) -> Recorded:
    """Returns the log that torchrun wrote for all ranks, split by rank: lines name theirs, others are rank 0's."""
    text = (TRAINER_LOGS / f"{name}.log").read_text(errors="replace")
    agent = "\n".join(line for line in text.splitlines() if "torch/distributed/elastic" in line)
    lines: dict[int, list[str]] = {0: [], 1: []}
    plain = 0
    for line in text.splitlines():
        if "torch/distributed/elastic" in line or line.startswith(("E1121", "W1121")):
            break
        plain += line == "Traceback (most recent call last):"  # before the process groups, of one rank each
        lines[1 if line.startswith("[rank1]") or plain > 1 else 0].append(line)
    return Recorded(control=folder, log=agent, texts={rank: "\n".join(each) for rank, each in lines.items()})


@pytest.mark.parametrize(
    ("name", "trained", "kind", "phase", "evidence"),
    [
        ("mlm_0161_oom", False, FailureKind.OOM, BurstPhase.INIT, "can't allocate memory"),
        ("mlm_0161_nan", True, FailureKind.NAN, None, "Unexpected result nan"),
        ("mlm_0161_bad_argument", False, FailureKind.CONFIG, BurstPhase.INIT, "Number of experts should be a multiple"),
    ],
)
def test_a_real_failure_is_named(
    name: str, trained: bool, kind: FailureKind, phase: BurstPhase | None, evidence: str, tmp_path: Path
) -> None:
    processes = recorded(name, tmp_path)
    ranks = evidence_of(processes, tmp_path, trained=trained)
    failure = classify(Evidence(ranks=ranks, launcher_code=1, launcher_log=processes.log))
    assert failure is not None
    assert failure.kind is kind, failure
    assert phase is None or failure.phase is phase
    assert evidence in failure.evidence
