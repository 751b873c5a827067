"""A tuner is killed with every process between it and Slurm: the job it submitted is adopted, or ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S
from tests.places import ROOT
from tests.trainer.launchers.slurm.cluster import Cluster
from tests.trainer.launchers.slurm.conftest import launcher_at
from tests.trainer.launchers.two_nodes import until
from trainer.launchers.nodes import folder as notes
from trainer.launchers.nodes.processes import NodesProcesses
from trainer.launchers.processes import descendants, send, with_mark
from trainer.launchers.slurm.clients import named
from trainer.launchers.warm import WarmRanks

pytestmark = pytest.mark.slurm

TUNER = """
import sys
from pathlib import Path
from tests.trainer.launchers.slurm.conftest import launcher_at
from tests.trainer.launchers.two_nodes import LIGHT, WORKERS
from trainer.launchers.warm import start_ranks

folder, job = Path(sys.argv[1]), sys.argv[2]
launcher = launcher_at(folder / "home", job=job)
env = {"PYTHONPATH": f"{WORKERS}:{LIGHT}"}
ranks = start_ranks(
    launcher, nodes=2, ranks_per_node=2, env=env, folder=folder / "jobs", name="0001", module="fake_worker"
)
print(ranks.processes.mark, flush=True)
ranks.run(folder / "0001", deadline_s=300)
"""


@contextmanager
def killed_tuner(folder: Path, acts: dict[int, list[list[Any]]], when: Callable[[], bool], job: str) -> Iterator[str]:
    """Starts a tuner that starts the burst, kills it with every process below it once `when`, and yields the start's
    mark; at the end waits until no process of it and no job is left."""
    (folder / "0001").mkdir()
    (folder / "0001/acts.json").write_text(json.dumps(acts))
    argv = [sys.executable, "-c", TUNER, str(folder), job]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        mark = tuner.stdout.readline().strip()
        until(when)
        for process in descendants(tuner.pid):
            send(process, signal.SIGKILL)  # a program of Slurm's may have ended meanwhile
        tuner.kill()
    yield mark
    until(lambda: not with_mark(mark) and not named("moe-"))


def adopted(folder: Path) -> NodesProcesses | None:
    launcher = launcher_at(folder / "home", job="per-burst")
    return launcher.adopt(nodes=2, ranks_per_node=2, control=folder / "jobs/0001")


def test_a_job_that_runs_on_is_adopted_and_runs_once(reachable: Cluster, tmp_path: Path) -> None:
    burst, started = tmp_path / "0001", time.monotonic()
    acts = {rank: [["say", "started"], ["wait_for", "go"]] for rank in range(4)}
    with killed_tuner(tmp_path, acts, (burst / "log/rank3.log").exists, "per-burst"):
        until(lambda: (burst / "log/rank0.log").exists())
        jobs = named("moe-")
        processes = adopted(tmp_path)
        assert processes is not None
        ranks = WarmRanks(processes=processes, once=True)
        (burst / "go").touch()
        result = ranks.resume(burst, deadline_s=HANG_S)
        ranks.end()
    assert result.failure is None
    assert [report.rank for report in result.reports] == [0, 1, 2, 3]
    assert {came.job for came in notes.started_nodes(tmp_path / "jobs/0001", 2)} == {jobs[0]}
    assert 0 < processes.ran_s < time.monotonic() - started


def test_a_job_that_ended_without_its_tuner_reports_how(reachable: Cluster, tmp_path: Path) -> None:
    acts: dict[int, list[list[Any]]] = {3: [["phase", "backward"], ["wait_for", "go"], ["kill", "SIGSEGV"]]}
    with killed_tuner(tmp_path, acts, (tmp_path / "0001/log/rank3.log").exists, "per-burst"):
        (tmp_path / "0001/go").touch()
        until(lambda: named("moe-") == [])
        processes = adopted(tmp_path)
        assert processes is not None
        ranks = WarmRanks(processes=processes, once=True)
        failure = ranks.resume(tmp_path / "0001", deadline_s=HANG_S).failure
    assert failure is not None
    assert "rank 3 was killed by SIGSEGV in backward" in failure.evidence


def test_a_job_that_waits_is_adopted_in_the_queue_and_can_be_taken_back(reachable: Cluster, tmp_path: Path) -> None:
    with reachable.allocation(), killed_tuner(tmp_path, {}, lambda: named("moe-") != [], "per-burst"):
        processes = adopted(tmp_path)
        assert processes is not None
        until(lambda: processes.pending is not None)
        processes.end()
        assert named("moe-") == []
    assert adopted(tmp_path) is None  # no node ever saw it


def test_a_job_without_a_tuner_ends_with_its_burst(reachable: Cluster, tmp_path: Path) -> None:
    with killed_tuner(tmp_path, {}, in_queue, "per-burst"):
        until(lambda: named("moe-") == [])
    assert len(list((tmp_path / "0001/ranks").glob("*.json"))) == 4


def in_queue() -> bool:
    return named("moe-") != []


def test_a_step_dies_with_its_tuner_and_nothing_is_adopted(allocated: Cluster, tmp_path: Path) -> None:
    acts: dict[int, list[list[Any]]] = {rank: [["hang"]] for rank in range(4)}
    with killed_tuner(tmp_path, acts, (tmp_path / "0001/log/rank3.log").exists, "allocation"):
        launcher = launcher_at(tmp_path / "home")
        control = tmp_path / "jobs/0001"
        assert launcher.adopt(nodes=2, ranks_per_node=2, control=control) is None
        argv = ["sleep", "100"]
        other = launcher.start(argv, env={}, nodes=2, ranks_per_node=2, control=tmp_path / "jobs/0002")
        assert [name for name in named("moe-") if name.endswith(".0")] == []  # the first step is gone
        other.end()
