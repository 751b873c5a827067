"""Maps the end of a step or job in Slurm to a failure.

Pure. A job's own state says little: a rank killed for memory leaves the job FAILED 1:0, and only the step's state, or a
line printed by srun or slurmstepd, shows the cause. Seen with Slurm 22.05; also has messages from 24.05's sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from trainer.burst import Failure, FailureKind
from trainer.launchers.slurm.queue import Queue

_OOM, _INFRA, _INTERRUPTED = FailureKind.OOM, FailureKind.INFRASTRUCTURE, FailureKind.INTERRUPTED

# states of squeue(1) and sacct(1) -> kind of failure; for other states the ranks' own evidence is better
STATES = {
    "NODE_FAIL": _INFRA,
    "BOOT_FAIL": _INFRA,
    "LAUNCH_FAILED": _INFRA,
    "RECONFIG_FAIL": _INFRA,
    "REVOKED": _INFRA,
    "OUT_OF_MEMORY": _OOM,
    "PREEMPTED": _INFRA,
    "TIMEOUT": FailureKind.HANG,  # a job per burst has the recipe's time limit, which another try would exceed as well
    "DEADLINE": _INTERRUPTED,
    "CANCELLED": _INTERRUPTED,
}
SUSPENDED = "SUSPENDED"
PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", SUSPENDED, "RESV_DEL_HOLD", "SPECIAL_EXIT")
RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED")

NEVER_S = 30.0  # a reason to wait forever must last this long: the scheduler's first answer may be wrong
# Reasons of squeue(1) that follow from the job's own request: it would wait forever. A hold, a partition that is down,
# or other jobs of the user (AssocMaxJobsLimit) are temporary.
NEVER = re.compile(
    r"BadConstraints|Partition(?:Node|Time)Limit|Invalid(?:Account|QOS)|(?:Account|QOS)NotAllowed"
    r"|(?:Assoc|QOS)Max\w+PerJob(?:Limit)?"
)


@dataclass(frozen=True, kw_only=True)
class SlurmMessage:
    """A line that Slurm prints; the group `node`, if any, is the node that it is about.

    `STEP … ON n1 …` names the first node of the step, even if another one failed.
    """

    kind: FailureKind
    pattern: str

    def match(self, line: str) -> re.Match[str] | None:
        return re.search(self.pattern, line)


NODE_FAILED = (
    SlurmMessage(kind=_INFRA, pattern=r"Node failure on (?P<node>[\w.-]+)"),
    SlurmMessage(kind=_INFRA, pattern=r"DUE TO NODE (?:\S+ )?FAILURE"),
)
# the first row that matches a line counts: a time limit is printed as a cancellation
LINES = (
    SlurmMessage(kind=_OOM, pattern=r"srun: error: (?P<node>\S+): tasks? [\d,-]+: Out Of Memory"),
    SlurmMessage(kind=_OOM, pattern=r"Detected \d+ oom[-_]kill events?"),
    *NODE_FAILED,
    SlurmMessage(kind=_INFRA, pattern=r"DUE TO PREEMPTION"),
    SlurmMessage(kind=_INFRA, pattern=r"DUE TO TIME LIMIT"),
    SlurmMessage(kind=_INFRA, pattern=r"launch failed|Task launch for \S+ failed on node (?P<node>[\w.-]+)"),
    SlurmMessage(kind=_INFRA, pattern=r"Unable to contact slurm controller|Socket timed out on send/recv"),
)
# A step that somebody cancels, and one that srun cancels because a task of it (our keeper) was killed, print the same
# two lines: what came first is the cause.
CANCELLED = SlurmMessage(kind=_INTERRUPTED, pattern=r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT")
TASK_DIED = SlurmMessage(kind=_INFRA, pattern=r"srun: error: (?P<node>\S+): tasks? [\d,-]+: (?!Out Of Memory)\w+")

# messages of srun and sbatch that another try does not change: the recipe requests something that does not exist
REFUSED = re.compile(
    r"Only allocated \d+ nodes asked for \d+|[Ii]nvalid (?:partition|account|qos|feature|constraint|wckey)\b.*"
    r"|Requested (?:node configuration|partition configuration) .*|(?:sbatch|srun): (?:unrecognized|invalid) option.*"
    r"|More processors requested than permitted|Memory required by task is not available|"
    r"Requested time limit is invalid.*|Job violates accounting/QOS policy.*|User's group not permitted.*|"
    r"Are required nodes explicitly excluded\?|Invalid node name specified|Expired or invalid job \d+|"
    r"Step requested GRES but job doesn't have GRES|Invalid generic resource.*"
)
# an inner step waits for the resources that another step of the allocation holds
STEP_WAITS = re.compile(r"Job \d+ step creation (?:temporarily|still) disabled, retrying \((?P<reason>[^)]*)\)")

# message of srun if its job is being ended
_ENDING = re.compile(r"Job/step already completing or completed")

_OVER = {"PREEMPTED": "it is preempted", "TIMEOUT": "its time limit has passed"}


def settled(record: Mapping[str, str], *, cut_off: bool = False) -> str:
    """Returns PREEMPTED or TIMEOUT if that ends the job, which its own state may not show; else its state.

    A preempted job still runs at first (GraceTime), then ends FAILED, or COMPLETED if its ranks obey the signal:
    `cut_off` says that they did not end by themselves. A job whose time is over has the reason TimeLimit.
    """
    state = record.get("JobState", "")
    if record.get("PreemptTime", "None") not in ("None", "Unknown") and (cut_off or state != "COMPLETED"):
        return "PREEMPTED"
    return "TIMEOUT" if record.get("Reason") == "TimeLimit" else state


def over(record: Mapping[str, str], now: datetime) -> str | None:
    """Returns why nothing can be started in an allocation any more, in words; None while something can.

    Slurm accepts no step after the allocation's end, and ends running ones at its next check, up to half a minute
    later.
    """
    state = settled(record)
    end = _moment(record.get("EndTime", ""))
    if state == "RUNNING" and end is not None and end <= now:
        state = "TIMEOUT"
    return None if state in ("", *PENDING, *RUNNING) else _OVER.get(state, f"it ended {state}")


def reports_an_end(log: str) -> bool:
    """Returns whether Slurm's lines report that the allocation is being ended, even if its state does not show it
    yet."""
    return _ENDING.search(log) is not None


def was_suspended(record: Mapping[str, str], since: datetime) -> bool:
    """Returns whether the job is suspended, or was at some time since `since`."""
    at = _moment(record.get("SuspendTime", ""))
    return record.get("JobState") == SUSPENDED or (at is not None and at >= since.replace(microsecond=0))


def end_if_soon(record: Mapping[str, str], now: datetime, within_s: float) -> str | None:
    """Returns when the job's time is over, in words, if that is within `within_s`; else None."""
    end = _moment(record.get("EndTime", ""))
    return f"its time ends at {end:%H:%M:%S}" if end and end - now <= timedelta(seconds=within_s) else None


def _moment(text: str) -> datetime | None:
    """Parses a time as scontrol writes it, in the client's time zone; returns None for Unknown and None."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def failure_by_log(log: str) -> tuple[Failure, str | None] | None:
    """Returns the failure that Slurm's lines report, and the node they name; None if they report none."""
    lines = log.splitlines()
    by_row = ((message, line) for message in LINES for line in lines)
    by_line = ((message, line) for line in lines for message in (CANCELLED, TASK_DIED))
    for message, line in (*by_row, *by_line):
        if found := message.match(line):
            node = found.groupdict().get("node")
            return Failure(kind=message.kind, evidence=f"Slurm says: {_plain(line)}"), node
    return None


def reports_a_failed_node(log: str) -> bool:
    """Returns whether Slurm's lines report a failed node.

    That ends an allocation too, and then the node is the cause.
    """
    return any(message.match(line) for message in NODE_FAILED for line in log.splitlines())


def failure_by_queue(queue: Queue) -> Failure | None:
    """Returns the failure that the states of the job and its steps show; a step's state takes precedence."""
    for state in [*queue.steps, queue.state]:
        kind = STATES.get(state)
        if kind is not None:
            where = f" on {queue.nodes}" if queue.nodes else ""
            return Failure(kind=kind, evidence=f"Slurm says: job {queue.job} ended {state}{where}{_advice(state)}")
    return None


def is_pending(queue: Queue) -> bool:
    return queue.state in PENDING


def reason_of(queue: Queue) -> str:
    return "not looked at yet" if queue.reason in ("", "None") else queue.reason


def never(queue: Queue) -> bool:
    """Returns whether the job can never start because of what it requests."""
    return queue.state in PENDING and NEVER.fullmatch(queue.reason) is not None


def refusal(log: str) -> str | None:
    """Returns why Slurm will not start this, in its own words; None if another attempt may succeed."""
    found = REFUSED.search(log)
    return found[0].strip() if found else None


def first_line(lines: Sequence[str]) -> str:
    return next((line.strip() for line in lines if line.strip()), "")


def _advice(state: str) -> str:
    return ": raise burst.launcher.slurm.time_limit_minutes" if state == "TIMEOUT" else ""


def _plain(line: str) -> str:
    return " ".join(line.replace("*", " ").split())
