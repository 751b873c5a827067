"""Ranks on two nodes of a real Slurm: warm between bursts, every fault named, nothing left behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.conftest import HANG_S
from tests.places import ROOT
from tests.trainer.launchers.slurm.cluster import Cluster
from tests.trainer.launchers.slurm.conftest import launcher_at, left_of, name_of
from tests.trainer.launchers.two_nodes import (
    BACKWARD,
    FAULTS,
    FORWARD,
    HANGS,
    KEEPER_KILLED,
    Case,
    Launch,
    MakeBurst,
    processes_of,
    stay_up,
    until,
)
from trainer.burst import BurstPhase, Failure, FailureKind
from trainer.errors import ToolError
from trainer.launchers.nodes import folder as notes
from trainer.launchers.nodes.avoid import avoid, avoided
from trainer.launchers.processes import Process, send, with_mark
from trainer.launchers.slurm.clients import named
from trainer.launchers.slurm.queue import Queue, queue_path
from trainer.launchers.warm import WarmRanks

pytestmark = pytest.mark.slurm


def failed(ranks: WarmRanks, folder: Path, *, deadline_s: float = HANG_S) -> Failure:
    failure = ranks.run(folder, deadline_s=deadline_s).failure
    assert failure is not None
    assert left_of(ranks) == []
    return failure


def test_ranks_of_two_nodes_stay_up_between_bursts(
    allocated: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst
) -> None:
    ranks = launch_on_nodes(torch=True)
    stay_up(ranks, make_burst)
    came = list(notes.started_nodes(ranks.control, 2))
    assert [each.host for each in came] == allocated.nodes
    assert all(path.parts[-5] == "torchrun" and "node1" in path.parts for path in ranks.processes.outputs(2))

    ranks.end()

    assert left_of(ranks) == []
    assert named("moe-") == []


CASES = (
    FAULTS
    | HANGS
    | {
        "the keeper of the second node is killed": Case(
            acts=KEEPER_KILLED, kind=FailureKind.INFRASTRUCTURE, evidence="Slurm says: srun: error:", avoids=1
        ),
    }
)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_a_fault_on_a_node_is_named_and_leaves_nothing(
    case: Case, allocated: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst, tmp_path: Path
) -> None:
    ranks = launch_on_nodes(torch=case in FAULTS.values())
    failure = failed(ranks, make_burst(case.acts), deadline_s=case.deadline_s)
    case.holds(failure, folder=tmp_path, nodes=allocated.nodes)


def test_memory_that_the_job_does_not_have_is_an_oom(
    reachable: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not reachable.limits_memory:
        pytest.skip("without memory cgroups (v1)")
    with reachable.allocation(memory_mib=400) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        failure = failed(launch_on_nodes(), make_burst({3: [BACKWARD, ["fill", 1000]], 0: [FORWARD, ["hang"]]}))
    assert (failure.kind, failure.rank, failure.phase) == (FailureKind.OOM, 3, BurstPhase.BACKWARD)


def test_a_step_that_somebody_cancels_is_an_interruption(
    allocated: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst
) -> None:
    ranks = launch_on_nodes()
    folder = make_burst({rank: [["hang"]] for rank in range(4)})
    cancelling = threading.Thread(target=lambda: cancel_when_up(allocated, ranks, folder))
    cancelling.start()
    failure = failed(ranks, folder)
    cancelling.join()
    assert failure.kind is FailureKind.INTERRUPTED
    assert "CANCELLED AT" in failure.evidence


def cancel_when_up(cluster: Cluster, ranks: WarmRanks, folder: Path) -> None:
    until((folder / "log" / "rank3.log").exists)
    cluster.run("scancel", *named(name_of(ranks)))


def test_srun_killed_is_the_machines_fault(allocated: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst) -> None:
    ranks = launch_on_nodes()
    assert ranks.run(make_burst({}), deadline_s=HANG_S).failure is None
    for process, argv in commands(ranks):
        if argv[0] == "srun":
            send(process, signal.SIGKILL)  # srun has two processes: the second may have ended with the first
    failure = failed(ranks, make_burst({0: [["hang"]]}))
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert "SIGKILL" in failure.evidence


def test_ranks_end_when_nobody_of_the_tuner_is_left(
    allocated: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst
) -> None:
    """Kills the supervisor, with which the kernel ends srun; Slurm and at last the lease end the rest."""
    ranks = launch_on_nodes()
    assert ranks.run(make_burst({}), deadline_s=HANG_S).failure is None
    processes = processes_of(ranks)
    processes.supervise.kill()
    processes.supervise.wait()
    until(lambda: not with_mark(processes.mark))  # the lease is 30 s


def commands(ranks: WarmRanks) -> list[tuple[Process, list[str]]]:
    found = []
    for process in with_mark(processes_of(ranks).mark):
        argv = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")
        found.append((process, argv))
    return found


TUNER = """
import sys
from pathlib import Path
from tests.trainer.launchers.slurm.conftest import launcher_at
from tests.trainer.launchers.two_nodes import fake_ranks

folder = Path(sys.argv[1])
ranks = fake_ranks(launcher_at(folder / "home"), folder)
ranks.run(folder / "burst", deadline_s=300)
print(ranks.processes.mark, flush=True)
sys.stdin.read()
"""


def test_ranks_end_with_a_tuner_that_is_killed(allocated: Cluster, tmp_path: Path) -> None:
    (tmp_path / "burst").mkdir()
    (tmp_path / "burst/acts.json").write_text("{}")
    argv = [sys.executable, "-c", TUNER, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        mark = tuner.stdout.readline().strip()
        assert len(with_mark(mark)) > 4
        tuner.kill()
    until(lambda: not with_mark(mark) and not named("moe-"))


def test_a_node_to_avoid_is_left_out_where_the_allocation_has_others(
    allocated: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst
) -> None:
    ranks = launch_on_nodes(nodes=1, exclude=allocated.nodes[:1])
    assert ranks.run(make_burst({}), deadline_s=HANG_S).failure is None
    assert [came.host for came in notes.started_nodes(ranks.control, 1)] == allocated.nodes[1:]


def test_what_a_tuner_that_is_gone_left_is_ended_by_the_next_start(
    allocated: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst
) -> None:
    left = launch_on_nodes()
    assert left.run(make_burst({}), deadline_s=HANG_S).failure is None
    ranks = launch_on_nodes()
    assert named(name_of(left)) == []
    assert ranks.run(make_burst({}), deadline_s=HANG_S).failure is None
    processes_of(left).wait(HANG_S)  # the local process that follows the step ends by itself
    assert left_of(left) == []


def test_a_folder_that_the_nodes_do_not_share_is_refused(
    allocated: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes another token into it, as if it were a folder of the same name on another disk."""
    write = notes.write

    def elsewhere(path: Path, note: Any) -> None:
        write(path, replace(note, token="another") if isinstance(note, notes.Start) else note)

    monkeypatch.setattr(notes, "write", elsewhere)
    with pytest.raises(ToolError, match="does not see"):
        launch_on_nodes().run(make_burst({}), deadline_s=HANG_S)


def test_more_nodes_than_the_allocation_has_are_refused(allocated: Cluster, launch_on_nodes: Launch) -> None:
    with pytest.raises(ToolError, match="asks for 3 nodes, and job"):
        launch_on_nodes(nodes=3)


def test_a_job_per_burst_is_submitted_followed_and_gone(
    reachable: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst, tmp_path: Path
) -> None:
    ranks = launch_on_nodes(job="per-burst")  # gloo in such a job: test_a_job_per_burst_keeps_no_ranks
    assert ranks.run(make_burst({}), deadline_s=HANG_S).failure is None
    assert not launcher_at(tmp_path, job="per-burst").keeps_ranks
    assert len(list(notes.started_nodes(ranks.control, 2))) == 2

    ranks.end()

    queue = notes.read(queue_path(ranks.control), Queue)
    assert queue is not None
    assert queue.state == "COMPLETED"
    assert named(name_of(ranks)) == []


def test_a_job_does_without_nodes_that_failed_only_where_there_are_others(
    reachable: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst, tmp_path: Path
) -> None:
    first, second = reachable.nodes
    for node in (first, second):
        avoid(tmp_path / "home", node, "its slurmd was killed")
    ranks = launch_on_nodes(job="per-burst", nodes=1)
    assert ranks.run(make_burst({}), deadline_s=HANG_S).failure is None
    assert [came.host for came in notes.started_nodes(ranks.control, 1)] == [first]  # it failed first
    ranks = launch_on_nodes(job="per-burst")
    assert ranks.run(make_burst({}), deadline_s=HANG_S).failure is None
    with pytest.raises(ToolError, match="Requested node configuration is not available"):
        launch_on_nodes(job="per-burst", exclude=[first]).run(make_burst({}), deadline_s=HANG_S)


def test_a_job_that_waits_has_no_deadline_and_can_be_taken_back(
    reachable: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst
) -> None:
    with reachable.allocation():
        ranks = launch_on_nodes(job="per-burst")
        ranks.startup_s = 2.0
        processes = processes_of(ranks)
        until(lambda: re.search(r"is pending \((Resources|Priority)", processes.pending or ""))
        running = threading.Thread(target=lambda: ranks.run(make_burst({}), deadline_s=HANG_S), daemon=True)
        running.start()
        running.join(4.0)
        assert running.is_alive()  # longer than startup_s
        ranks.end()
        running.join(HANG_S)
        assert named(name_of(ranks)) == []
    assert processes.queued_s > 0


def test_a_job_that_somebody_cancels_is_an_interruption(
    reachable: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst
) -> None:
    ranks = launch_on_nodes(job="per-burst")
    folder = make_burst({rank: [["hang"]] for rank in range(4)})
    cancelling = threading.Thread(target=lambda: cancel_when_up(reachable, ranks, folder))
    cancelling.start()
    failure = failed(ranks, folder)
    cancelling.join()
    assert failure.kind is FailureKind.INTERRUPTED


def test_a_partition_that_is_not_there_is_refused(
    reachable: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst
) -> None:
    with pytest.raises(ToolError, match="invalid partition"):
        launch_on_nodes(job="per-burst", partition="none").run(make_burst({}), deadline_s=HANG_S)


def test_a_node_whose_slurmd_is_gone_is_named_and_its_ranks_end_all_the_same(
    cluster: Cluster, launch_on_nodes: Launch, make_burst: MakeBurst, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its ranks run on when Slurm gives the node up: the control folder reaches their keeper."""
    with cluster.allocation() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        ranks = launch_on_nodes()
        assert ranks.run(make_burst({}), deadline_s=HANG_S).failure is None
        with cluster.without_slurmd(cluster.nodes[1]):
            failure = failed(ranks, make_burst({2: [["hang"]]}), deadline_s=HANG_S)
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert failure.evidence.startswith(f"node {cluster.nodes[1]}: Slurm says: ")
    assert "node failure" in failure.evidence.lower()
    assert avoided(tmp_path / "home") == [cluster.nodes[1]]
