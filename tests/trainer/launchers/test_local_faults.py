"""Every way a rank, torchrun or the supervisor can fail: named rightly, and nothing left behind."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S
from tests.draws import few
from tests.places import LIGHT
from tests.trainer.launchers.conftest import mark_of
from tests.trainer.launchers.two_nodes import BURST_S, WORKERS
from trainer.burst import BurstPhase, Failure, FailureKind
from trainer.launchers import local, rank_observer, warm
from trainer.launchers.processes import Status, status_of, with_mark
from trainer.launchers.warm import WarmRanks

FORWARD, BACKWARD, INIT = ["phase", "forward"], ["phase", "backward"], ["phase", "init"]


@dataclass(frozen=True, kw_only=True)
class Case:
    acts: dict[int, list[list[Any]]]
    kind: FailureKind
    phase: BurstPhase
    rank: int | None
    evidence: str
    deadline_s: float = HANG_S
    agent: bool = True  # whether torchrun's own agent notices, else a stand-in starts the ranks


CASES = {
    "a rank is killed": Case(
        acts={0: [FORWARD, ["hang"]], 1: [BACKWARD, ["kill", "SIGKILL"]]},
        kind=FailureKind.CRASH,
        phase=BurstPhase.BACKWARD,
        rank=1,
        evidence="rank 1 was killed by SIGKILL in backward",
    ),
    "a rank is killed, its peer ignores TERM, both have children of their own": Case(
        acts={
            0: [FORWARD, ["ignore_term"], ["grandchild", "kept"], ["grandchild", "wiped"], ["hang"]],
            1: [FORWARD, ["grandchild", "wiped"], ["kill", "SIGSEGV"]],
        },
        kind=FailureKind.CRASH,
        phase=BurstPhase.FORWARD,
        rank=1,
        evidence="rank 1 was killed by SIGSEGV in forward",
    ),
    "a rank leaves with code 0": Case(
        acts={0: [FORWARD, ["hang"]], 1: [["phase", "optimizer"], ["say", "bye"], ["leave", 0]]},
        kind=FailureKind.CRASH,
        phase=BurstPhase.OPTIMIZER,
        rank=1,
        evidence="exited with code 0 in optimizer; its last line: bye",
    ),
    "a rank reports that memory is out": Case(
        acts={0: [BACKWARD, ["allocate"]], 1: [FORWARD, ["hang"]]},
        kind=FailureKind.OOM,
        phase=BurstPhase.BACKWARD,
        rank=0,
        evidence="MemoryError",
        agent=False,
    ),
    "all ranks refuse the recipe": Case(
        acts={rank: [INIT, ["fail", "AssertionError", "tp must divide heads"]] for rank in range(2)},
        kind=FailureKind.CONFIG,
        phase=BurstPhase.INIT,
        rank=None,
        evidence="AssertionError: tp must divide heads",
        agent=False,
    ),
    "a rank hangs": Case(
        acts={1: [BACKWARD, ["hang"]]},
        kind=FailureKind.HANG,
        phase=BurstPhase.BACKWARD,
        rank=1,
        evidence=f"no end after {BURST_S:g} s: rank 1 in backward at File",
        deadline_s=BURST_S,
    ),
    "a rank is stopped": Case(
        acts={0: [FORWARD, ["kill", "SIGSTOP"]]},
        kind=FailureKind.HANG,
        phase=BurstPhase.FORWARD,
        rank=0,
        evidence="rank 0 is stopped in forward",
        deadline_s=BURST_S,
        agent=False,
    ),
    "torchrun is killed": Case(
        acts={0: [FORWARD, ["kill_above", 1]], 1: [FORWARD, ["grandchild", "wiped"], ["hang"]]},
        kind=FailureKind.INFRASTRUCTURE,
        phase=BurstPhase.FORWARD,
        rank=None,
        evidence="the launcher was killed by SIGKILL",
    ),
    "the supervisor is killed": Case(
        acts={0: [FORWARD, ["grandchild", "kept"], ["kill_above", 2]], 1: [FORWARD, ["hang"]]},
        kind=FailureKind.INFRASTRUCTURE,
        phase=BurstPhase.FORWARD,
        rank=None,
        evidence="the launcher was killed by SIGKILL",
    ),
    "all ranks are asked to end": Case(
        acts={rank: [FORWARD, ["kill", "SIGTERM"]] for rank in range(2)},
        kind=FailureKind.INTERRUPTED,
        phase=BurstPhase.FORWARD,
        rank=None,
        evidence="SIGTERM",
    ),
}


QUICK = {"a rank is killed"}


def cases() -> list[Any]:
    later = [pytest.mark.faults]
    return [pytest.param(case, id=name, marks=later * (name not in QUICK)) for name, case in CASES.items()]


def shown(failure: Failure | None) -> tuple[object, ...]:
    assert failure is not None
    return failure.kind, failure.phase


@pytest.mark.parametrize("case", cases())
def test_a_fault_is_named_and_leaves_nothing(
    case: Case, launch: Callable[..., WarmRanks], make_burst: Callable[..., Path]
) -> None:
    ranks = launch(**({} if case.agent else {"PYTHONPATH": f"{WORKERS}:{LIGHT}"}))
    folder = make_burst(case.acts)

    result = ranks.run(folder, deadline_s=case.deadline_s)

    assert with_mark(mark_of(ranks)) == []
    for note in folder.glob("grandchild*.pid"):
        assert gone(int(note.read_text()))
    assert not ranks.alive
    failure = result.failure
    assert failure is not None
    assert (failure.kind, failure.phase) == (case.kind, case.phase), failure
    assert case.rank is None or failure.rank == case.rank
    assert case.evidence in failure.evidence
    assert failure.killed is (case is CASES["a rank is killed"])


def gone(pid: int) -> bool:
    status = status_of(pid)
    return status is None or status.dead


@pytest.mark.faults
def test_the_peer_that_says_connection_closed_is_not_to_blame(
    launch: Callable[..., WarmRanks], make_burst: Callable[..., Path]
) -> None:
    """Real gloo: rank 1 dies inside the second step, rank 0 then raises, and reports before anyone ends it."""
    folder = make_burst(
        {
            0: [["meet"], FORWARD, ["meet"]],
            1: [["meet"], ["phase", "optimizer"], ["leave", 0]],
        }
    )
    result = launch().run(folder, deadline_s=HANG_S)
    failure = result.failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.phase) == (FailureKind.CRASH, 1, BurstPhase.OPTIMIZER)
    witness = next(report for report in result.reports if report.rank == 0)
    assert witness.error is not None
    assert "Connection closed by peer" in witness.error.message or "reset by peer" in witness.error.message


@pytest.mark.faults
def test_ranks_waiting_in_a_collective_are_not_the_one_that_hangs(
    launch: Callable[..., WarmRanks], make_burst: Callable[..., Path]
) -> None:
    folder = make_burst({0: [FORWARD, ["meet"], ["meet"]], 1: [FORWARD, ["meet"], BACKWARD, ["hang"]]})
    ranks = launch()
    assert ranks.run(make_burst({0: [["meet"]], 1: [["meet"]]}), deadline_s=HANG_S).failure is None
    failure = ranks.run(folder, deadline_s=BURST_S).failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.phase) == (FailureKind.HANG, 1, BurstPhase.BACKWARD)


@pytest.mark.parametrize(
    ("module", "env", "evidence"),
    few(
        [("fake_worker", {"FAKE_BOOT": "import"}, "No module named"), ("no_such_worker", {}, "No module named")],
        1,
        later=pytest.mark.faults,
    ),
)
def test_ranks_that_cannot_import_say_so(
    launch: Callable[..., WarmRanks], make_burst: Callable[..., Path], module: str, env: dict[str, str], evidence: str
) -> None:
    folder = make_burst({})
    failure = launch(module=module, **env).run(folder, deadline_s=HANG_S).failure
    assert failure is not None
    assert (failure.kind, failure.phase, failure.rank) == (FailureKind.IMPORT, BurstPhase.START, 0)
    assert evidence in failure.evidence
    assert evidence in (folder / "log" / "rank0.log").read_text()


def test_an_interpreter_that_does_not_exist_is_an_import_failure(
    launch: Callable[..., WarmRanks], make_burst: Callable[..., Path]
) -> None:
    failure = launch(python="/no/such/python3").run(make_burst({}), deadline_s=HANG_S).failure
    assert failure is not None
    assert (failure.kind, failure.phase) == (FailureKind.IMPORT, BurstPhase.START)
    assert "/no/such/python3" in failure.evidence


def test_ranks_that_do_not_come_up_are_given_up(
    launch: Callable[..., WarmRanks], make_burst: Callable[..., Path]
) -> None:
    ranks = launch(startup_s=0.2)
    failure = ranks.run(make_burst({}), deadline_s=HANG_S).failure
    assert shown(failure) == (FailureKind.HANG, BurstPhase.START)
    assert with_mark(mark_of(ranks)) == []


def test_a_port_that_somebody_took_is_the_machines_fault(
    launch: Callable[..., WarmRanks], make_burst: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(local, "free_port", lambda address: other.getsockname()[1])
        failure = launch().run(make_burst({}), deadline_s=HANG_S).failure
    assert shown(failure) == (FailureKind.INFRASTRUCTURE, BurstPhase.START)
    assert failure is not None
    assert "EADDRINUSE" in failure.evidence or "Address already in use" in failure.evidence


@pytest.mark.parametrize(
    "name",
    few(
        ["a rank leaves with code 0", "a rank is killed, its peer ignores TERM, both have children of their own"],
        1,
        later=pytest.mark.faults,
    ),
)
def test_a_rank_that_is_gone_before_it_was_looked_at_is_named_by_the_agent(
    name: str, launch: Callable[..., WarmRanks], make_burst: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def status_of_the_living(pid: int) -> Status | None:
        status = status_of(pid)
        return None if status is None or status.dead else status

    monkeypatch.setattr(rank_observer, "status_of", status_of_the_living)
    monkeypatch.setattr(warm, "_KILLED_S", 3.0)
    case = CASES[name]
    ranks = launch()

    failure = ranks.run(make_burst(case.acts), deadline_s=case.deadline_s).failure

    assert shown(failure) == (case.kind, case.phase)
    assert failure is not None
    assert case.evidence in failure.evidence
