"""Ranks of the fake worker, two on each of two nodes, started by any launcher: shared by the tests of launchers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import HANG_S
from tests.places import LIGHT
from trainer.burst import BurstPhase, Failure, FailureKind
from trainer.launchers import Launcher
from trainer.launchers.nodes.avoid import avoided
from trainer.launchers.nodes.processes import NodesProcesses
from trainer.launchers.warm import WarmRanks, start_ranks

WORKERS = Path(__file__).parent  # the folder of fake_worker
Launch = Callable[..., WarmRanks]
MakeBurst = Callable[..., Path]
FORWARD, BACKWARD = ["phase", "forward"], ["phase", "backward"]
BURST_S = 10.0  # deadline of a burst that hangs, from when its ranks are up: what they do before takes milliseconds


def until(done: Callable[[], object]) -> None:
    """Waits until the condition holds; fails if it never does."""
    give_up = time.monotonic() + HANG_S
    while not done():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def fake_ranks(launcher: Launcher, folder: Path, *, nodes: int = 2, torch: bool = False, **how: Any) -> WarmRanks:
    """Starts fake ranks in the folder of a study; `how` as of `start_ranks`.

    `torch`: by torchrun's own agent, and ranks can import it; else by the stand-in.
    """
    env = {"PYTHONPATH": str(WORKERS) if torch else f"{WORKERS}:{LIGHT}"}
    return start_ranks(
        launcher, nodes=nodes, ranks_per_node=2, env=env, folder=folder / "home/ranks", module="fake_worker", **how
    )


def starting(
    launcher_with: Callable[..., Launcher], folder: Path, ended: Callable[[WarmRanks], None]
) -> Iterator[Launch]:
    """Yields a function that starts ranks with a launcher of these settings.

    At the end of the test all are ended, and `ended` fails if they are not.
    """
    started: list[WarmRanks] = []

    def start(*, nodes: int = 2, torch: bool = False, **settings: Any) -> WarmRanks:
        started.append(fake_ranks(launcher_with(**settings), folder, nodes=nodes, torch=torch))
        return started[-1]

    yield start
    for ranks in started:
        ranks.end()
        ended(ranks)


def processes_of(ranks: WarmRanks) -> NodesProcesses:
    assert isinstance(ranks.processes, NodesProcesses)
    return ranks.processes


def stay_up(ranks: WarmRanks, make_burst: MakeBurst) -> None:
    """Runs three bursts, one after the other, of all four ranks."""
    for number in range(3):
        folder = make_burst({rank: [["meet"], ["say", f"burst {number}"]] for rank in range(4)})
        result = ranks.run(folder, deadline_s=HANG_S)
        assert result.failure is None
        assert [report.rank for report in result.reports] == [0, 1, 2, 3]
        assert (folder / "log" / "rank3.log").read_text().endswith(f"burst {number}\n")
        assert ranks.alive


@dataclass(frozen=True, kw_only=True)
class Case:
    """Fault of a burst: what the ranks do, and the expected failure."""

    acts: dict[int, list[list[Any]]]
    kind: FailureKind
    evidence: str
    rank: int | None = None
    phase: BurstPhase | None = None
    deadline_s: float = HANG_S
    avoids: int | None = None  # the node, from 0, that is not used again

    def holds(self, failure: Failure | None, *, folder: Path, nodes: list[str]) -> None:
        assert failure is not None
        assert failure.kind is self.kind, failure
        assert self.evidence in failure.evidence
        assert self.rank is None or failure.rank == self.rank
        assert self.phase is None or failure.phase is self.phase
        left_out = [] if self.avoids is None else [nodes[self.avoids]]
        assert avoided(folder / "home") == left_out
        assert all(node in failure.evidence for node in left_out)


# every launcher that starts keepers reports these in words of its own
FAULTS = {
    "a rank of the second node is killed": Case(
        acts={0: [FORWARD, ["hang"]], 3: [BACKWARD, ["grandchild", "wiped"], ["kill", "SIGKILL"]]},
        kind=FailureKind.CRASH,
        rank=3,
        phase=BurstPhase.BACKWARD,
        evidence="rank 3 was killed by SIGKILL in backward",
    ),
    "the agent of the second node is killed": Case(
        acts={2: [FORWARD, ["kill_above", 1]], 0: [["hang"]]},
        kind=FailureKind.INFRASTRUCTURE,
        evidence="the launcher was killed by SIGKILL",
        avoids=1,
    ),
}
# these the keepers report alike, whoever started them
HANGS = {
    "a rank of the second node hangs, its stacks say where": Case(
        acts={3: [BACKWARD, ["hang"]]},
        kind=FailureKind.HANG,
        rank=3,
        phase=BurstPhase.BACKWARD,
        evidence=f"no end after {BURST_S:g} s: rank 3 in backward at File",
        deadline_s=BURST_S,
    ),
    "a rank of the second node is stopped": Case(
        acts={2: [FORWARD, ["kill", "SIGSTOP"]]},
        kind=FailureKind.HANG,
        rank=2,
        evidence="rank 2 is stopped in forward",
        deadline_s=BURST_S,
    ),
}
KEEPER_KILLED: dict[int, list[list[Any]]] = {2: [FORWARD, ["kill_above", 2]], 0: [["hang"]]}
