"""Checks which failures Slurm's output becomes: lines of real runs (Slurm 22.05) and the states of its manual."""

from __future__ import annotations

from datetime import datetime

import pytest

from trainer.burst import FailureKind
from trainer.launchers.slurm.clients import fields_of
from trainer.launchers.slurm.queue import Queue
from trainer.launchers.slurm.states import (
    STATES,
    end_if_soon,
    failure_by_log,
    failure_by_queue,
    never,
    over,
    refusal,
    reports_an_end,
    settled,
    was_suspended,
)

CANCELLED = """slurmstepd-n1: error: *** STEP 3.10 ON n1 CANCELLED AT 2026-11-22T06:40:13 ***
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
srun: error: n1: task 0: Killed
srun: launch/slurm: _step_signal: Terminating StepId=3.10
srun: error: n2: task 1: Killed"""
KEEPER_KILLED = """srun: error: n2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=3.7
slurmstepd-n1: error: *** STEP 3.7 ON n1 CANCELLED AT 2026-11-22T06:38:54 ***
srun: Force Terminated StepId=3.7"""
MEMORY = """slurmstepd-n2: error: Detected 1 oom-kill event(s) in StepId=3.5. Some of your processes may have been
srun: error: n2: task 1: Out Of Memory
srun: launch/slurm: _step_signal: Terminating StepId=3.5
slurmstepd-n1: error: *** STEP 3.5 ON n1 CANCELLED AT 2026-11-22T06:38:43 ***"""
TIME = "slurmstepd-n1: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-11-22T06:38:43 DUE TO TIME LIMIT ***"
NODE = """slurmstepd-n1: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-11-22T06:38:43 DUE TO NODE FAILURE, SEE …
srun: Job step aborted: Waiting up to 7 seconds for job step to finish."""


@pytest.mark.parametrize(
    ("log", "kind", "node"),
    [
        (CANCELLED, FailureKind.INTERRUPTED, None),
        (KEEPER_KILLED, FailureKind.INFRASTRUCTURE, "n2"),
        (MEMORY, FailureKind.OOM, "n2"),
        (TIME, FailureKind.INFRASTRUCTURE, None),
        (NODE, FailureKind.INFRASTRUCTURE, None),  # n1 is the first node, n2 failed
        (f"srun: error: Node failure on n2\n{NODE}", FailureKind.INFRASTRUCTURE, "n2"),
    ],
)
def test_lines_tell_what_ended_a_step_and_where(log: str, kind: FailureKind, node: str | None) -> None:
    found = failure_by_log(log)
    assert found is not None
    assert (found[0].kind, found[1]) == (kind, node)
    assert found[0].evidence.startswith("Slurm says: ")


def test_ordinary_lines_tell_nothing() -> None:
    assert failure_by_log("srun: job 3 queued and waiting for resources\nrank 0 is up") is None


def test_the_state_of_a_step_goes_before_that_of_its_job() -> None:
    found = failure_by_queue(Queue(job="7", state="FAILED", nodes="n[1-2]", steps=["COMPLETED", "OUT_OF_MEMORY"]))
    assert found is not None
    assert found.kind is FailureKind.OOM
    assert found.evidence == "Slurm says: job 7 ended OUT_OF_MEMORY on n[1-2]"


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "RUNNING", "PENDING"])
def test_states_that_tell_nothing_are_no_failure(state: str) -> None:
    assert failure_by_queue(Queue(job="7", state=state)) is None


@pytest.mark.parametrize("state", list(STATES))
def test_every_other_state_names_itself(state: str) -> None:
    found = failure_by_queue(Queue(job="7", state=state))
    assert found is not None
    assert state in found.evidence


def test_a_time_limit_says_what_to_raise() -> None:
    found = failure_by_queue(Queue(job="7", state="TIMEOUT"))
    assert found is not None
    assert "time_limit_minutes" in found.evidence


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            "srun: error: Only allocated 2 nodes asked for 3",
            "Only allocated 2 nodes asked for 3",
        ),
        (
            "sbatch: error: invalid partition specified: none\nsbatch: error: Batch job submission failed: Invalid "
            "partition name specified",
            "invalid partition specified: none",
        ),
        (
            "srun: error: Unable to create step for job 5: Memory required by task is not available",
            "Memory required by task is not available",
        ),
        ("srun: error: Unable to contact slurm controller (connect failure)", None),
    ],
)
def test_what_another_try_cannot_help_is_a_refusal(log: str, said: str | None) -> None:
    assert refusal(log) == said


def test_a_job_waits_for_ever_for_what_is_not_there_and_not_for_resources() -> None:
    assert never(Queue(job="7", state="PENDING", reason="PartitionNodeLimit"))
    assert not never(Queue(job="7", state="PENDING", reason="Resources"))
    assert not never(Queue(job="7", state="RUNNING", reason="None"))


@pytest.mark.parametrize(
    ("reason", "passes"),
    [
        ("PartitionTimeLimit", False),
        ("QOSMaxWallDurationPerJobLimit", False),
        ("QOSMaxGRESPerJob", False),
        ("AssocMaxJobsLimit", True),
        ("QOSMaxGRESPerUser", True),
        ("JobHeldUser", True),
        ("JobHeldAdmin", True),
        ("PartitionDown", True),
        ("PartitionInactive", True),
    ],
)
def test_a_reason_that_passes_with_the_same_request_is_not_for_ever(reason: str, passes: bool) -> None:
    assert never(Queue(job="7", state="PENDING", reason=reason)) is not passes


@pytest.mark.parametrize(
    ("words", "state", "why"),
    [
        ("JobState=RUNNING Reason=None PreemptTime=None", "RUNNING", None),
        ("JobState=COMPLETING Reason=None PreemptTime=None", "COMPLETING", None),
        ("JobState=RUNNING Reason=None PreemptTime=2026-11-22T11:38:31", "PREEMPTED", "it is preempted"),
        ("JobState=FAILED Reason=NonZeroExitCode PreemptTime=2026-11-22T11:38:31", "PREEMPTED", "it is preempted"),
        ("JobState=COMPLETED Reason=None PreemptTime=2026-11-22T11:38:31", "COMPLETED", "it ended COMPLETED"),
        ("JobState=COMPLETING Reason=TimeLimit PreemptTime=None", "TIMEOUT", "its time limit has passed"),
        ("JobState=NODE_FAIL Reason=NodeDown", "NODE_FAIL", "it ended NODE_FAIL"),
        ("JobState=OUT_OF_MEMORY Reason=OutOfMemory", "OUT_OF_MEMORY", "it ended OUT_OF_MEMORY"),
        ("JobState=SUSPENDED Reason=None", "SUSPENDED", None),
        ("JobState=RUNNING Reason=None EndTime=2026-11-22T11:38:31", "RUNNING", "its time limit has passed"),
        ("JobState=RUNNING Reason=None EndTime=2026-11-22T11:38:32", "RUNNING", None),
        ("JobState=COMPLETING Reason=None EndTime=2026-11-22T11:38:31", "COMPLETING", None),
        ("Reason=None", "", None),
    ],
)
def test_a_job_that_is_over_says_why_though_its_state_does_not(words: str, state: str, why: str | None) -> None:
    record = fields_of(f"JobId=7 {words}")
    assert (settled(record), over(record, datetime(2026, 11, 22, 11, 38, 31))) == (state, why)


def test_the_end_of_a_jobs_time_is_announced_when_it_is_near() -> None:
    now = datetime(2026, 11, 22, 23, 59)
    record = {"EndTime": "2026-11-23T00:01:30"}
    assert end_if_soon(record, now, 180.0) == "its time ends at 00:01:30"
    assert end_if_soon(record, now, 60.0) is None
    assert end_if_soon({"EndTime": "Unknown"}, now, 60.0) is None


def test_a_job_was_suspended_where_it_is_or_its_last_time_was_since() -> None:
    since = datetime(2026, 11, 22, 12, 0, 0, 500)
    assert was_suspended({"JobState": "SUSPENDED", "SuspendTime": "2026-11-22T11:00:00"}, since)
    assert was_suspended({"JobState": "RUNNING", "SuspendTime": "2026-11-22T12:00:00"}, since)
    assert not was_suspended({"JobState": "RUNNING", "SuspendTime": "2026-11-22T11:59:59"}, since)
    assert not was_suspended({"JobState": "RUNNING", "SuspendTime": "None"}, since)


def test_a_job_that_made_room_and_ended_well_was_preempted_where_its_ranks_were_cut_off() -> None:
    record = {"JobState": "COMPLETED", "PreemptTime": "2026-11-22T13:50:58", "Reason": "None"}
    assert settled(record) == "COMPLETED"
    assert settled(record, cut_off=True) == "PREEMPTED"
    assert settled(record | {"PreemptTime": "None"}, cut_off=True) == "COMPLETED"


def test_an_allocation_that_takes_no_step_any_more_is_being_ended() -> None:
    said = "srun: error: Unable to create step for job 7: Job/step already completing or completed"
    assert reports_an_end(said)
    assert not reports_an_end("srun: error: Unable to create step for job 7: Requested nodes are busy")
