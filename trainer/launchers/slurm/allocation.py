"""The job that the tuner runs in: whether it is over or about to end, and why.

Slurm ends the steps of a job that reaches its time limit or is preempted, and kills the tuner in the job, unless salloc
started the tuner or the tuner ends at a signal that it gets before (`sbatch --signal`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from trainer.errors import AllocationEndedError
from trainer.launchers.slurm import clients, states

WARNED_S = 120  # in a job that we submit, Slurm signals the tuner this long before the job's time is over
_EARLY_S = 65.0  # Slurm may send the signal up to 60 s earlier (sbatch(1)); 5 s spare
_SOON_S = 5.0  # time limit for an answer when everything may be killed at any moment
SETTLES_S = 20.0  # time until the state of a job that is ending, or whose step was cancelled, shows why


def over(job: str) -> str | None:
    """Returns why the job is over, in words; None while it runs, or if Slurm does not answer."""
    record = clients.job_record(job)
    if record is not None:
        why = states.over(record, datetime.now())
    else:
        why = "Slurm knows it no longer" if clients.is_gone(job) else None
    return why and f"job {job}, which the tuner ran in, is over: {why}"


def ending(job: str) -> str:
    """Waits, at most `SETTLES_S`, until the state of a job that Slurm is ending shows the reason, which happens only
    once the last step is gone; returns the reason, or that Slurm is ending the job."""
    give_up = time.monotonic() + SETTLES_S
    while not (why := over(job)) and time.monotonic() < give_up:
        time.sleep(clients.POLL_S)
    return why or f"job {job}, which the tuner ran in, is over: Slurm is ending it"


def refuse_ended(job: str) -> None:
    """Raises AllocationEndedError if nothing can be started in the job any more."""
    if why := over(job):
        raise AllocationEndedError(why, hint="ask for another allocation, then continue with --resume")


def reason_of_the_signal(environ: Mapping[str, str]) -> str | None:
    """Returns why Slurm asks a tuner to end, if its job is about to end; else None."""
    job = environ.get("SLURM_JOB_ID")
    record = clients.job_record(job, ask=partial(clients.run, timeout_s=_SOON_S)) if job else None
    if record is None:
        return None
    now = datetime.now()
    why = states.over(record, now) or states.end_if_soon(record, now, WARNED_S + _EARLY_S)
    return why and f"job {job}: {why}"
