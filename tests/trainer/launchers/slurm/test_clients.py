"""Checks how the output of Slurm's programs is read, and a job that is followed by a fake clock."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from trainer.errors import ToolError
from trainer.launchers.nodes import folder
from trainer.launchers.nodes.avoid import avoid, avoided, unneeded
from trainer.launchers.slurm import clients
from trainer.launchers.slurm.clients import (
    cancel,
    down,
    fields_of,
    has_gpus,
    hostnames,
    is_gone,
    job_record,
    named,
    run,
    step_states,
)
from trainer.launchers.slurm.job import follow
from trainer.launchers.slurm.monitor import SlurmMonitor
from trainer.launchers.slurm.queue import Queue, queue_path

SHOWN = (
    "JobId=12 JobName=moe-1 UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901757 Nice=0 Account=(null) "
    "QOS=(null) JobState=PENDING Reason=Resources Dependency=(null) NodeList=(null) Command=/c/job.sh"
)


class Slurm:
    """Answers by the program's name and remembers what it was asked."""

    def __init__(self, **answers: str | None) -> None:
        self.answers, self.asked = answers, [""]

    def __call__(self, argv: Sequence[str]) -> str | None:
        self.asked.append(" ".join(argv))
        return self.answers.get(argv[0])


def test_a_job_is_read_by_field() -> None:
    record = job_record("12", ask=Slurm(scontrol=SHOWN))
    assert record is not None
    assert (record["JobState"], record["Reason"], record["NodeList"]) == ("PENDING", "Resources", "(null)")


def test_a_job_has_gpus_however_it_asked_for_them() -> None:
    """Slurm 22.05 lists GPUs in the form in which they were requested."""
    for asked in ("TresPerNode=gres:gpu:4", "TresPerTask=gres:gpu:1", "TresPerJob=gres:gpu:8", "AllocTRES=gres/gpu=8"):
        assert has_gpus(fields_of(f"JobId=1 TRES=cpu=2,mem=4000M,node=2 {asked}"))
    assert not has_gpus(fields_of("JobId=1 TRES=cpu=2,mem=4000M,node=2,billing=2 Partition=gpu"))


def test_a_controller_that_does_not_answer_says_nothing() -> None:
    assert job_record("12", ask=Slurm()) is None


def test_states_of_steps_are_those_of_accounting_without_the_job_itself() -> None:
    slurm = Slurm(sacct="12|FAILED\n12.batch|FAILED\n12.0|OUT_OF_MEMORY\n12.1|CANCELLED by 0\n")
    assert step_states("12", ask=slurm) == ["FAILED", "OUT_OF_MEMORY", "CANCELLED"]
    assert step_states("12", ask=Slurm()) == []


def test_a_list_of_nodes_is_taken_apart_by_scontrol_where_it_has_to_be() -> None:
    slurm = Slurm(scontrol="n1\nn2\nn7\n")
    assert hostnames("n[1-2,7]", ask=slurm) == ["n1", "n2", "n7"]
    assert slurm.asked[-1] == "scontrol show hostnames n[1-2,7]"
    assert hostnames("n1,n2", ask=Slurm()) == ["n1", "n2"]
    assert hostnames("", ask=Slurm()) == []


def test_nodes_that_slurm_cannot_use_are_down_or_silent() -> None:
    slurm = Slurm(sinfo="n1|mixed\nn2|down*\nn3|allocated*\nn4|drained\n")
    assert down(["n1", "n2", "n3", "n4"], ask=slurm) == ["n2", "n3"]
    assert slurm.asked[-1] == "sinfo -h -N -n n1,n2,n3,n4 -o %N|%T"
    assert down([], ask=Slurm()) == []


def test_only_what_bears_the_name_is_ours() -> None:
    answers = {"squeue -h --me -o %i|%j": "5|bash\n6|moe-ab-2\n"}
    answers["squeue -h --me -s -o %i|%j"] = "5.0|moe-ab-1\n5.batch|batch\n5.1|moe-cd-1\n"
    assert named("moe-ab-", ask=lambda argv: answers[" ".join(argv)]) == ["6", "5.0"]


def test_a_job_is_gone_where_a_controller_that_answers_lists_it_no_more() -> None:
    assert is_gone("12", ask=Slurm(squeue="11\n120\n"))
    assert not is_gone("12", ask=Slurm(squeue="11\n12\n"))
    assert not is_gone("12", ask=Slurm())


def test_cancelling_ends_with_the_name_gone_from_the_queue() -> None:
    there = ["7|moe-ab-1\n", "", "7|moe-ab-1\n", "", "", ""]
    asked: list[str] = []

    def slurm(argv: Sequence[str]) -> str | None:
        asked.append(argv[0])
        return there.pop(0) if argv[0] == "squeue" else ""

    assert cancel("moe-ab-", ask=slurm) == ["7"]
    assert asked == ["squeue", "squeue", "scancel"] * 2 + ["squeue", "squeue"]


def test_how_a_user_likes_to_see_the_queue_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SQUEUE_STATES": "RUNNING", "SLURM_TIME_FORMAT": "relative", "SLURM_CONF": "/c"}.items():
        monkeypatch.setenv(name, value)
    assert run(["sh", "-c", "echo $SQUEUE_STATES.$SLURM_TIME_FORMAT.$SLURM_CONF"]) == ".standard./c\n"


def test_what_a_silent_controller_may_still_run_is_not_taken_for_gone() -> None:
    answers: list[str | None] = [None, None, "7|moe-ab-1\n", "", None, None, "", ""]

    def slurm(argv: Sequence[str]) -> str | None:
        return answers.pop(0) if argv[0] == "squeue" else ""

    said: list[str] = []
    assert named("moe-ab-", ask=slurm, say=said.append) == ["7"]
    assert said == ["Slurm does not answer: waiting for it, up to 10 minutes"]
    assert cancel("moe-ab-", ask=slurm) == []
    assert answers == []
    with pytest.raises(ToolError, match="Slurm has not answered squeue"):
        named("moe-ab-", ask=lambda argv: None, answer_s=0.0, say=said.append)


def fake_squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Puts an squeue on PATH that counts its calls in `asked` and fails with these words."""
    path = folder / "squeue"
    path.write_text(f"#!/bin/sh\necho >> {folder}/asked\nprintf '%b' \"{words}\" >&2\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    "words",
    [
        "squeue: unrecognized option '--me'\nTry squeue --help for more information\n",
        "squeue: error: Munge encode failed: Failed to access /run/munge/munge.socket.2: No such file or directory\n"
        "slurm_load_jobs error: Protocol authentication error\n",
    ],
)
def test_a_failing_squeue_is_quoted_and_not_waited_for(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_squeue(tmp_path, monkeypatch, words)
    said: list[str] = []
    with pytest.raises(ToolError, match=re.escape("squeue fails: " + "; ".join(words.splitlines()))):
        named("moe-ab-", say=said.append)
    assert said == []
    assert (tmp_path / "asked").read_text() == "\n"
    assert run(["squeue"]) is None


def test_a_squeue_that_may_not_be_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match=r"squeue fails: .*No such file or directory"):
        named("moe-ab-")


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "slurm_load_jobs error: Connection refused",
        "",
    ],
)
def test_a_controller_that_squeue_cannot_reach_is_waited_for(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_squeue(tmp_path, monkeypatch, words)
    with pytest.raises(ToolError, match="Slurm has not answered squeue for 0 s"):
        named("moe-ab-", answer_s=0.0)


@pytest.mark.parametrize(("listed", "stays"), [(["7.0"], True), (["7"], False), ([], False), (None, False)])
def test_a_step_that_does_not_end_is_an_error_and_a_job_in_its_epilogue_is_none(
    listed: list[str] | None, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "cancel", lambda name: ["7", "7.0"])
    monkeypatch.setattr(clients, "listed", lambda name: listed)
    monitor = SlurmMonitor(control=tmp_path, name="moe-ab-1", job=None, queue_s=None)
    with pytest.raises(ToolError, match=r"Slurm does not end 7\.0") if stays else nullcontext():
        monitor.end()


def test_a_job_is_followed_through_the_queue_to_its_end(tmp_path: Path) -> None:
    """The controller fails to answer once: the job continues."""
    now = [0.0]
    states: list[dict[str, str] | None] = [
        {"JobState": "PENDING", "Reason": "Resources", "NodeList": "(null)"},
        {"JobState": "PENDING", "Reason": "Priority", "NodeList": "(null)"},
        {"JobState": "RUNNING", "Reason": "None", "NodeList": "n[1-2]"},
        None,
        {"JobState": "FAILED", "Reason": "NonZeroExitCode", "NodeList": "n[1-2]"},
    ]

    def sleep(seconds: float) -> None:
        now[0] += 10.0

    code = follow(
        "12",
        tmp_path,
        ask=lambda job: states.pop(0),
        steps=lambda job: ["OUT_OF_MEMORY"],
        gone=lambda job: False,
        clock=lambda: now[0],
        sleep=sleep,
    )
    assert code == 1
    assert folder.read(queue_path(tmp_path), Queue) == Queue(
        job="12", state="FAILED", reason="NonZeroExitCode", nodes="n[1-2]", waited_s=10.0, steps=["OUT_OF_MEMORY"]
    )


def test_nodes_that_failed_are_remembered_and_spared_as_far_as_the_allocation_allows(tmp_path: Path) -> None:
    assert avoided(tmp_path) == []
    for node in ("n2", "n3", "n2"):
        avoid(tmp_path / "home", node, "ECC")
    assert avoided(tmp_path / "home") == ["n2", "n3"]
    assert unneeded(["n2", "n3", "n9"], ["n1", "n2", "n3", "n4"], 3) == ["n3"]
    assert unneeded(["n2", "n3"], ["n1", "n2"], 2) == []
