"""Checks jobs that Slurm ends for its own reasons: preemption and time limits."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.tuning.events import BurstFinished, BurstLost
from autotune.tuning.journal import events_of, read_study
from tests.conftest import HANG_S
from tests.places import LIGHT, ROOT
from tests.trainer.launchers.slurm.cluster import NODES, POLITE, USUAL, Cluster
from tests.trainer.launchers.slurm.conftest import left_of
from tests.trainer.launchers.slurm.test_engines_on_slurm import with_trainer
from tests.trainer.launchers.two_nodes import Launch, MakeBurst, processes_of, until
from trainer.burst import Failure, FailureKind
from trainer.errors import AllocationEndedError
from trainer.launchers.nodes.avoid import avoided
from trainer.launchers.slurm import monitor
from trainer.launchers.slurm.clients import named
from trainer.launchers.stopwatch import STOPPED_S
from trainer.launchers.warm import WarmRanks

pytestmark = pytest.mark.slurm

DEADLINE_S = 30.0  # deadline of a burst that is suspended for longer
LOOK_S = 0.5  # interval of the tuner's looks at a job's state: it sees a suspension long before the deadline
End = Callable[[Cluster, str], AbstractContextManager[None]]


@contextmanager
def preempted(cluster: Cluster, job: str) -> Iterator[None]:
    with cluster.preempted():
        yield


@contextmanager
def out_of_time(cluster: Cluster, job: str) -> Iterator[None]:
    cluster.let_run_out(job)
    yield


def failed_as(end: AbstractContextManager[None], ranks: WarmRanks, folder: Path) -> Failure:
    """Returns the failure of a burst that hangs until Slurm ends it."""

    def come() -> None:
        until((folder / "log/rank3.log").exists)
        with end:
            over.wait(HANG_S)

    over = threading.Event()
    coming = threading.Thread(target=come)
    coming.start()
    try:
        failure = ranks.run(folder, deadline_s=HANG_S).failure
    finally:
        over.set()
        coming.join()
    assert failure is not None
    assert left_of(ranks) == []
    return failure


HANGS: dict[int, list[list[Any]]] = {rank: [["say", "started"], ["hang"]] for rank in range(4)}


@pytest.mark.parametrize("partition", [USUAL, POLITE])
def test_an_allocation_that_makes_room_is_an_interruption_and_starts_nothing_more(
    partition: str,
    cluster: Cluster,
    launch_on_nodes: Launch,
    make_burst: MakeBurst,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with cluster.allocation(f"--partition={partition}") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        job = variables["SLURM_JOB_ID"]
        failure = failed_as(cluster.preempted(), launch_on_nodes(), make_burst(HANGS))
        said = f"job {job}, which the tuner ran in, is over: it is preempted"
        assert (failure.kind, failure.evidence) == (FailureKind.INTERRUPTED, said)
        assert avoided(tmp_path / "home") == []
        with pytest.raises(AllocationEndedError, match=re.escape(said)):
            launch_on_nodes()


@pytest.mark.parametrize(
    ("end", "settings", "kind", "why"),
    [
        pytest.param(preempted, {}, FailureKind.INFRASTRUCTURE, "PREEMPTED", id="preempted"),
        pytest.param(
            preempted, {"partition": POLITE}, FailureKind.INFRASTRUCTURE, "PREEMPTED", id="preempted after a warning"
        ),
        pytest.param(out_of_time, {}, FailureKind.HANG, "TIMEOUT", id="out of time"),
    ],
)
def test_a_job_per_burst_that_makes_room_is_tried_again_and_one_out_of_time_is_not(
    end: End,
    settings: dict[str, Any],
    kind: FailureKind,
    why: str,
    reachable: Cluster,
    launch_on_nodes: Launch,
    make_burst: MakeBurst,
    tmp_path: Path,
) -> None:
    @contextmanager
    def its_job() -> Iterator[None]:
        (job,) = (each for each in named("moe-") if "." not in each)
        with end(reachable, job):
            yield

    failure = failed_as(its_job(), launch_on_nodes(job="per-burst", **settings), make_burst(HANGS))
    assert failure.kind is kind, failure
    assert f"ended {why}" in failure.evidence
    assert avoided(tmp_path / "home") == []
    assert named("moe-") == []


@pytest.mark.parametrize("settings", [{}, {"job": "per-burst"}], ids=["a step", "a job a burst"])
def test_a_burst_that_slurm_suspends_continues_and_its_deadline_is_extended(
    settings: dict[str, Any],
    cluster: Cluster,
    launch_on_nodes: Launch,
    make_burst: MakeBurst,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitor, "_ASK_S", LOOK_S)
    with cluster.allocation() if not settings else nullcontext({"SLURM_CONF": str(cluster.conf)}) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        ranks = launch_on_nodes(**settings)
        folder = make_burst({rank: [["say", "started"], ["wait_for", "go"]] for rank in range(4)})

        def suspend() -> None:
            until((folder / "log/rank3.log").exists)
            job = variables.get("SLURM_JOB_ID") or next(each for each in named("moe-") if "." not in each)
            cluster.change("scontrol", "suspend", job, job=job)
            until(lambda: processes_of(ranks).pending == f"job {job} is suspended")
            time.sleep(1.2 * DEADLINE_S)  # longer than the ranks may take
            cluster.change("scontrol", "resume", job, job=job)
            (folder / "go").touch()

        suspending = threading.Thread(target=suspend)
        suspending.start()
        result = ranks.run(folder, deadline_s=DEADLINE_S)
        suspending.join()
        assert result.failure is None
        assert len(result.reports) == 4


def tuner(folder: Path, *more: str, budget: int, env: dict[str, str]) -> subprocess.Popen[str]:
    argv = ["run", str(folder / "night.yaml"), "--study", str(folder / "study"), "--budget", str(budget), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "autotune.cli", *argv],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{LIGHT}", "PYTHONUNBUFFERED": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def study_in(folder: Path, launcher: Any, *, step_s: float = 0.1) -> None:
    data = with_trainer({"step_s": step_s}, launcher).model_dump(mode="json")
    data["burst"]["probe_links"] = False
    data["tune"]["patience"] = 50
    (folder / "night.yaml").write_text(yaml.safe_dump(data))


def finished(folder: Path) -> list[int]:
    return [event.burst for event in events_of(folder / "study") if isinstance(event, BurstFinished)]


def lost(folder: Path) -> list[int]:
    return [event.burst for event in events_of(folder / "study") if isinstance(event, BurstLost)]


def left_by(folder: Path) -> list[int]:
    """Returns the study's live processes on all nodes, which are this machine."""
    words = str(folder / "study").encode()
    commands = {int(path.parent.name): path for path in Path("/proc").glob("[0-9]*/cmdline")}
    return [pid for pid, path in commands.items() if _has(path, words)]


def _has(path: Path, words: bytes) -> bool:
    try:
        return words in path.read_bytes()
    except OSError:  # it has ended
        return False


@pytest.mark.parametrize(
    ("end", "why"),
    [
        pytest.param(preempted, "it is preempted", id="preempted"),
        pytest.param(out_of_time, "its time limit has passed", id="out of time"),
    ],
)
def test_a_tuner_whose_allocation_is_over_ends_in_order_and_goes_on_in_another(
    end: End, why: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts the tuner as salloc does, which does not signal it."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    study_in(tmp_path, "slurm")
    with cluster.allocation() as variables:
        job = variables["SLURM_JOB_ID"]
        first = tuner(tmp_path, budget=50, env=variables)
        until(lambda: len(finished(tmp_path)) > 0)
        with end(cluster, job):
            said, _ = first.communicate(timeout=HANG_S)
    assert first.returncode == 130, said
    assert f"interrupted: job {job}, which the tuner ran in, is over: {why}" in said
    assert "resume with: moe-autotune run" in said
    before = read_study(tmp_path / "study").finished
    with cluster.allocation() as variables:
        second = tuner(tmp_path, "--resume", budget=len(before) + 1, env=variables)
        said, _ = second.communicate(timeout=HANG_S)
    assert second.returncode == 0, said
    after = read_study(tmp_path / "study").finished
    assert after[:-1] == before
    assert finished(tmp_path) == list(range(1, len(before) + 2))
    until(lambda: not left_by(tmp_path) and not named("moe-"))


def test_a_burst_whose_job_makes_room_is_run_again(reachable: Cluster, tmp_path: Path) -> None:
    study_in(tmp_path, {"slurm": {"job": "per-burst"}}, step_s=3.0)
    tuning = tuner(tmp_path, budget=1, env={})
    until(lambda: any(_has(log, b"iteration ") for log in tmp_path.glob("study/engine/jobs/0001/node1/**/stdout.log")))
    with reachable.preempted():
        until(lambda: lost(tmp_path) or tuning.poll() is not None)
    said, _ = tuning.communicate(timeout=HANG_S)
    assert tuning.returncode == 0, said
    assert re.search(r"burst 1 lost, not caused by the recipe: .* job \d+ ended PREEMPTED", said)
    assert finished(tmp_path) == [1]
    until(lambda: not left_by(tmp_path) and not named("moe-"))


def test_a_tuner_that_slurm_suspends_with_its_ranks_goes_on_where_it_was(reachable: Cluster, tmp_path: Path) -> None:
    """Starts the tuner as sbatch does: it is stopped too, for longer than its trainer may be silent."""
    study_in(tmp_path, "slurm", step_s=1.0)
    argv = [sys.executable, "-m", "autotune.cli", "run", "night.yaml", "--study", "study", "--budget", "1"]
    job = reachable.run(
        *("sbatch", "--parsable", f"--nodes={NODES}", "--mem=4000", f"--chdir={tmp_path}", "--output=tuner.log"),
        *("--wrap", f"export PYTHONPATH={ROOT}:{LIGHT}; exec {shlex.join(argv)}"),
    ).strip()
    until(lambda: any(_has(log, b"iteration ") for log in tmp_path.glob("study/engine/*/node1/**/stdout.log")))
    reachable.change("scontrol", "suspend", job, job=job)
    time.sleep(STOPPED_S + 5.0)
    reachable.change("scontrol", "resume", job, job=job)
    until(lambda: job not in reachable.run("squeue", "-h", "-o", "%i"))
    said = (tmp_path / "tuner.log").read_text()
    assert finished(tmp_path) == [1], said
    assert lost(tmp_path) == [], said
    until(lambda: not left_by(tmp_path))
