"""Submits one job and follows it until it has ended; `supervise` runs this if every burst is a job.

`python -m trainer.launchers.slurm.job <control folder> <sbatch …>`, or with the id of a job that an earlier tuner
submitted. The job's state is written to `queue.json`; slurmctld is asked rarely, since every tuner of every user asks
it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from trainer.launchers.nodes import folder
from trainer.launchers.processes import OWNER
from trainer.launchers.slurm.clients import CLIENT_S, is_gone, job_record, step_states
from trainer.launchers.slurm.queue import Queue, queue_path
from trainer.launchers.slurm.states import PENDING, RUNNING, settled

SOON_S, LATE_S = 0.5, 5.0  # seconds between two queries: at first, and after a minute
_SUBMIT_S = 3 * CLIENT_S


def main(control: Path, command: list[str]) -> int:
    job = submit(command) if len(command) > 1 else command[0]
    if job is None:
        return 1
    print(f"job {job}", flush=True)
    return follow(job, control)


def submit(command: list[str]) -> str | None:
    """Submits the job and returns its id; None, with sbatch's message in our log, if it was refused.

    The job's processes have no owner, because they may outlive the tuner.
    """
    env = {name: value for name, value in os.environ.items() if name != OWNER}
    try:
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=_SUBMIT_S, check=False)
    except subprocess.TimeoutExpired:
        print("sbatch: error: Socket timed out on send/recv operation", flush=True)  # sbatch's own words
        return None
    return done.stdout.strip().split(";")[0] if done.returncode == 0 else None


def follow(
    job: str,
    control: Path,
    *,
    ask: Callable[[str], dict[str, str] | None] = job_record,
    steps: Callable[[str], list[str]] = step_states,
    gone: Callable[[str], bool] = is_gone,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Follows a job until it has ended; returns 0 if it completed, else 1.

    If the controller does not answer it is asked again, since the job continues.
    """
    started = clock()
    waited_s = 0.0
    shown = None
    while True:
        record = ask(job)
        state = settled(record or {})
        if state in PENDING:
            waited_s = clock() - started
        if state and (state, (record or {}).get("Reason")) != shown:
            shown = (state, (record or {}).get("Reason"))
            print(f"job {job} {state} {shown[1]}", flush=True)
        if record is not None:
            over = bool(state) and state not in PENDING + RUNNING
            found = _queue(job, record, waited_s, steps(job) if over else [])
            folder.write(queue_path(control), found)
            if over:
                return 0 if state == "COMPLETED" else 1
        elif gone(job):
            return 1
        sleep(SOON_S if clock() - started < 60 else LATE_S)


def _queue(job: str, record: dict[str, str], waited_s: float, steps: list[str]) -> Queue:
    nodes = record.get("NodeList", "")
    return Queue(
        job=job,
        state=settled(record),
        reason=record.get("Reason", ""),
        nodes="" if nodes == "(null)" else nodes,
        waited_s=round(waited_s, 3),
        steps=steps,
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
