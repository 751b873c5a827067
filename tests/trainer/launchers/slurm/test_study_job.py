"""`run` with `allocate`: one job for the study, looked at from outside, ended, left alone and gone on with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.looks.reasons import end_text
from autotune.tuning.events import TunerStarted
from autotune.tuning.journal import events_of, read_study
from tests.conftest import HANG_S
from tests.places import LIGHT, ROOT
from tests.trainer.launchers.slurm.cluster import Cluster
from tests.trainer.launchers.slurm.test_ended_by_slurm import finished, study_in
from tests.trainer.launchers.two_nodes import until
from trainer.errors import ToolError
from trainer.launchers.slurm import clients, states, study_job
from trainer.launchers.slurm.allocation import WARNED_S
from trainer.launchers.slurm.clients import named
from trainer.launchers.slurm.study_job import Follower, StudyJob, is_wanted
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.launching import SlurmSettings

RECIPE = """
name: night
model: mixtral-8x7b
cluster: {gpu: h100, nodes: 2, gpus_per_node: 8}
training: {seq_length: 4096, global_batch_size: 256, micro_batch_size: 1}
parallelism: {pp: 4, ep: 4}
burst: {engine: simulated, launcher: {slurm: {allocate: "--nodes=2 --time=30 --gpus-per-node=0"}}}
"""
ASKED = {"slurm": {"allocate": "--nodes=2 --time=30"}}  # for bursts that take long enough for Slurm to look


def test_the_recipes_words_take_the_place_of_ours() -> None:
    settings = SlurmSettings(allocate="-N4 --time 8:00:00 --mem=100G", account="me")
    asked = StudyJob(settings=settings, study=Path("/s/night-1"), nodes=2, gpus_per_node=8, argv=["run", "a b"])
    words = asked.words()
    assert words[:2] == ["sbatch", "--parsable"]
    assert words[-5:] == ["-N4", "--time", "8:00:00", "--mem=100G", "/s/night-1/allocation/job.sh"]
    assert {"--account=me", "--gpus-per-node=8", "--signal=B:TERM@120", "--no-requeue"} <= set(words)
    assert not {"--nodes=2", "--mem=0"} & set(words)
    assert asked.script().endswith("exec run 'a b'\n")


def test_a_study_asks_for_its_job_only_outside_of_one(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    assert is_wanted(recipe, {})
    assert not is_wanted(recipe, {"SLURM_JOB_ID": "7"})
    assert not is_wanted(load_recipe("cpu-moe"), {})


@pytest.fixture
def taken_back(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of cancelled jobs; no pending reason is given time to pass."""
    names: list[str] = []
    monkeypatch.setattr(clients, "cancel", names.append)
    monkeypatch.setattr(states, "NEVER_S", -1.0)
    monkeypatch.setattr(study_job, "_LOOK_S", 0.0)
    return names


def look_at(
    monkeypatch: pytest.MonkeyPatch, study: Path, *records: dict[str, str] | None
) -> tuple[Follower, list[str]]:
    left, said = list(records), list[str]()
    monkeypatch.setattr(clients, "job_record", lambda job: left.pop(0))
    asked = StudyJob(settings=SlurmSettings(allocate=""), study=study, nodes=2, gpus_per_node=8, argv=["run"])
    return Follower(study_job=asked, job="7", say=said.append), said


@pytest.mark.parametrize("reason", ["AssocMaxJobsLimit", "JobHeldUser", "PartitionDown"])
def test_a_job_that_waits_for_what_passes_is_waited_for(
    reason: str, taken_back: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = {"JobState": "PENDING", "Reason": reason}
    look, said = look_at(monkeypatch, tmp_path, waits, waits, {"JobState": "RUNNING"}, {"JobState": "COMPLETED"})
    assert look.follow()
    assert said == [f"job 7 is pending ({reason})", "job 7 runs"]
    assert taken_back == []


def test_a_job_that_asks_for_what_is_not_there_is_taken_back(
    taken_back: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, _ = look_at(monkeypatch, tmp_path, {"JobState": "PENDING", "Reason": "PartitionNodeLimit"})
    with pytest.raises(ToolError, match="cannot start, for the reason PartitionNodeLimit, and was taken back"):
        look.follow()
    assert taken_back == [look.study_job.name]


def test_slurm_s_programs_that_fail_for_good_are_reported_once_while_the_log_is_followed(
    taken_back: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_job, "_UNANSWERED_S", -1.0)
    monkeypatch.setattr(clients, "is_gone", lambda job: False)
    monkeypatch.setattr(clients, "why_unanswered", lambda job: "squeue fails: no such plugin")
    records = (None, None, {"JobState": "RUNNING"}, {"JobState": "COMPLETED"})
    look, said = look_at(monkeypatch, tmp_path, *records)
    assert look.follow()
    assert re.fullmatch(r"Slurm has not said for \d+ s what became of job 7: squeue fails: no such plugin; .*", said[0])
    assert said[1:] == ["Slurm answers again", "job 7 runs"]
    assert taken_back == []


def test_why_slurm_does_not_say_what_a_job_does_is_the_message_of_squeue() -> None:
    def fails(argv: Sequence[str]) -> str:
        raise ToolError(f"{argv[0]} fails: bad config", hint="")

    assert clients.why_unanswered("7", ask=fails) == "squeue fails: bad config"
    assert clients.why_unanswered("7", ask=lambda argv: None) == "the controller does not answer"


def recipe_in(folder: Path) -> Recipe:
    (folder / "night.yaml").write_text(RECIPE)
    return load_recipe(str(folder / "night.yaml"))


def tuner(folder: Path, *more: str, budget: int) -> subprocess.Popen[str]:
    argv = ["run", str(folder / "night.yaml"), "--study", str(folder / "study"), "--budget", str(budget), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "autotune.cli", *argv],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{LIGHT}", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slurm
def test_a_study_runs_in_a_job_of_its_own_is_left_found_again_ended_and_gone_on_with(
    reachable: Cluster, tmp_path: Path
) -> None:
    study_in(tmp_path, ASKED)
    first = tuner(tmp_path, budget=50)
    until(lambda: len(finished(tmp_path)) > 0)
    first.kill()  # the job does not care
    first.communicate()
    jobs = named("moe-autotune-")
    assert len([job for job in jobs if "." not in job]) == 1

    second = tuner(tmp_path, "--resume", budget=50)
    assert second.stdout is not None
    assert f"in job {jobs[0]}, which runs already" in second.stdout.readline()
    before = len(finished(tmp_path))
    until(lambda: len(finished(tmp_path)) > before)
    second.send_signal(signal.SIGINT)
    said, _ = second.communicate(timeout=HANG_S)
    assert second.returncode == 130, said
    assert "burst 1: " in said
    assert "resume with: moe-autotune run" in said
    assert named("moe-autotune-") == []
    ended = read_study(tmp_path / "study").ended
    assert ended is not None
    assert (ended.status, end_text(ended)) == ("interrupted", "ended by TERM")

    third = tuner(tmp_path, "--resume", budget=len(finished(tmp_path)) + 1)
    said, _ = third.communicate(timeout=HANG_S)
    assert third.returncode == 0, said
    started = [event.host for event in events_of(tmp_path / "study") if isinstance(event, TunerStarted)]
    assert len(started) == 2  # the job's two: who only looks on writes nothing
    assert finished(tmp_path) == list(range(1, len(finished(tmp_path)) + 1))


@pytest.mark.slurm
def test_a_job_that_slurm_ends_leaves_a_study_to_go_on_with(reachable: Cluster, tmp_path: Path) -> None:
    study_in(tmp_path, ASKED)
    looking = tuner(tmp_path, budget=50)
    until(lambda: len(finished(tmp_path)) > 0)
    (job,) = (each for each in named("moe-autotune-") if "." not in each)
    reachable.change("scancel", "--signal=KILL", "--batch", job, job=job)
    said, _ = looking.communicate(timeout=HANG_S)
    assert looking.returncode == 130, said
    assert "before the study did; resume with: moe-autotune run" in said
    assert (tmp_path / "study/report.html").exists()


@pytest.mark.slurm
def test_a_job_that_makes_room_leaves_a_study_to_go_on_with_in_the_next(reachable: Cluster, tmp_path: Path) -> None:
    study_in(tmp_path, ASKED)
    looking = tuner(tmp_path, budget=50)
    until(lambda: len(finished(tmp_path)) > 0)
    with reachable.preempted():
        said, _ = looking.communicate(timeout=HANG_S)
    assert looking.returncode == 130, said
    assert re.search(r"job \d+ ended PREEMPTED( before the study did)?; resume with: moe-autotune run", said)
    before = read_study(tmp_path / "study").finished
    again = tuner(tmp_path, "--resume", budget=len(before) + 1)
    said, _ = again.communicate(timeout=HANG_S)
    assert again.returncode == 0, said
    assert read_study(tmp_path / "study").finished[:-1] == before
    assert named("moe-autotune-") == []


@pytest.mark.slurm
def test_a_tuner_warned_of_the_end_of_its_time_says_so_and_ends_in_order(reachable: Cluster, tmp_path: Path) -> None:
    study_in(tmp_path, ASKED)
    looking = tuner(tmp_path, budget=50)
    until(lambda: len(finished(tmp_path)) > 0)
    (job,) = (each for each in named("moe-autotune-") if "." not in each)
    reachable.let_run_out(job, in_s=WARNED_S + 30)  # a busy tuner has all of its warning to end in
    said, _ = looking.communicate(timeout=HANG_S)
    assert looking.returncode == 130, said
    assert re.search(rf"interrupted: ended by TERM: job {job}: its time ends at \d\d:\d\d:\d\d", said)
    assert "resume with: moe-autotune run" in said


@pytest.mark.slurm
def test_what_slurm_refuses_is_said_in_its_words(reachable: Cluster, tmp_path: Path) -> None:
    (tmp_path / "night.yaml").write_text(RECIPE.replace("--time=30", "--partition=none"))
    said, _ = (refused := tuner(tmp_path, budget=3)).communicate(timeout=HANG_S)
    assert refused.returncode == 3
    assert "Slurm does not take the job: sbatch: error: invalid partition" in said


@pytest.mark.slurm
def test_a_job_that_can_never_start_is_taken_back(reachable: Cluster, tmp_path: Path) -> None:
    (tmp_path / "night.yaml").write_text(RECIPE.replace("--nodes=2", "--nodes=5"))
    said, _ = (refused := tuner(tmp_path, budget=3)).communicate(timeout=HANG_S)
    assert refused.returncode == 3, said
    assert re.search(r"job \d+ cannot start, for the reason \w+, and was taken back", said)
    assert named("moe-autotune-") == []
