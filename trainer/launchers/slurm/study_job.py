"""One job for a whole study: the tuner runs inside it, and the process that submitted it only follows it.

The job is found again by its name, which is derived from the study's folder. Sources: sbatch(1), scancel(1).
"""

from __future__ import annotations

import hashlib
import math
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainer.errors import ToolError
from trainer.launchers.slurm import clients, states
from trainer.launchers.slurm.allocation import WARNED_S
from trainer.launchers.slurm.argv import environment_outside, sbatch_options, unless_theirs
from trainer.launchers.slurm.queue import Queue
from trainer.recipe import Recipe
from trainer.recipe.launching import SlurmSettings, slurm_settings

_LOOK_S, _SEEN_S = 1.0, 0.2  # seconds between looks at the job's state, and at its log
_SUBMIT_S = 3 * clients.CLIENT_S
_UNANSWERED_S = 60.0  # seconds without an answer of Slurm's programs before the user is informed
_PATIENCE_S = 90.0  # time for the tuner to end its burst and write its report


def is_wanted(recipe: Recipe, environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the recipe asks for a job for the whole study and the tuner is not yet in an allocation."""
    if recipe.burst.launcher_kind != "slurm":
        return False
    return slurm_settings(recipe.burst.launcher).allocate is not None and not environ.get("SLURM_JOB_ID")


def study_job_of(recipe: Recipe, *, study: Path, argv: Sequence[str]) -> StudyJob:
    return StudyJob(
        settings=slurm_settings(recipe.burst.launcher),
        study=study,
        nodes=recipe.cluster.nodes,
        gpus_per_node=None if recipe.hardware.is_cpu else recipe.ranks_per_node,
        argv=argv,
    )


@dataclass(frozen=True, kw_only=True)
class StudyJob:
    """The job of one study.

    `study`: its folder as an absolute path, which the nodes see too; `argv`: the command of the job, which can be run
    again.
    """

    settings: SlurmSettings
    study: Path
    nodes: int
    gpus_per_node: int | None
    argv: Sequence[str]

    @property
    def name(self) -> str:
        return f"moe-autotune-{hashlib.sha256(str(self.study).encode()).hexdigest()[:8]}"

    @property
    def folder(self) -> Path:
        """Returns the folder for its script and logs, one log per job."""
        return self.study / "allocation"

    def log(self, job: str) -> Path:
        return self.folder / f"{job}.log"

    def words(self) -> list[str]:
        """Returns sbatch's options. The recipe's own options in `allocate` replace ours."""
        theirs = shlex.split(self.settings.allocate or "")
        ours = [
            *("--no-requeue", "--exclusive", "--mem=0", "--ntasks-per-node=1"),
            f"--nodes={self.nodes}",
            f"--signal=B:TERM@{WARNED_S}",
            *([f"--gpus-per-node={self.gpus_per_node}"] if self.gpus_per_node else []),
            *sbatch_options(self.settings),
            *([f"--exclude={','.join(self.settings.exclude)}"] if self.settings.exclude else []),
        ]
        apart = ["--parsable", f"--job-name={self.name}", f"--output={self.log('%j')}"]
        return ["sbatch", *apart, *unless_theirs(ours, theirs), *theirs, str(self.folder / "job.sh")]

    def script(self) -> str:
        return f"#!/bin/sh\ncd {shlex.quote(os.getcwd())}\nexec {shlex.join(self.argv)}\n"

    def running(self) -> str | None:
        """Returns the job of this study that waits or runs; None if there is none."""
        return next((job for job in clients.named(self.name) if "." not in job), None)

    def submit(self) -> str:
        """Submits the job and returns its id. Raises ToolError, with sbatch's message, if it is refused."""
        clients.require("sbatch", "scancel", "squeue", "scontrol")
        self.folder.mkdir(exist_ok=True)
        (self.folder / "job.sh").write_text(self.script())
        env = environment_outside(os.environ)
        try:
            done = subprocess.run(self.words(), env=env, capture_output=True, text=True, timeout=_SUBMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise ToolError(
                "sbatch does not answer", hint="see `sinfo`; then run again with --resume, which finds a job it took"
            ) from None
        if done.returncode != 0:
            raise ToolError(
                f"Slurm does not take the job: {states.first_line(done.stderr.splitlines())}",
                hint="see burst.launcher.slurm.allocate in the recipe",
            )
        return done.stdout.strip().split(";")[0]


@dataclass(kw_only=True)
class Follower:
    """Follows the job of one study: reports its state and prints its output."""

    study_job: StudyJob
    job: str
    say: Callable[[str], None]
    last: Queue = field(init=False)

    def __post_init__(self) -> None:
        self.last = Queue(job=self.job, state="")
        self._hopeful_at = self._answered_at = time.monotonic()
        self._said_unanswered = False
        self._log = _Lines(self.study_job.log(self.job))

    def follow(self, *, patience_s: float = math.inf) -> bool:
        """Follows the job until it is over or `patience_s` has passed; returns whether it is over.

        Raises ToolError if it can never start and was therefore cancelled.
        """
        give_up = time.monotonic() + patience_s
        while True:
            over = self._look()
            look_again = time.monotonic() + _LOOK_S
            while self._log.say(self.say) or (time.monotonic() < look_again and not over):
                time.sleep(_SEEN_S)
            if over or time.monotonic() > give_up:
                return over

    def _look(self) -> bool:
        record = clients.job_record(self.job)
        if record is None:
            gone = clients.is_gone(self.job)
            if not gone:
                self._unanswered()
            return gone
        if self._said_unanswered:
            self.say("Slurm answers again")
        self._answered_at, self._said_unanswered = time.monotonic(), False
        seen = Queue(job=self.job, state=record.get("JobState", ""), reason=record.get("Reason", ""))
        _tell(seen, self.last, self.say)
        self.last = seen
        self._refuse_for_ever()
        return seen.state not in states.PENDING + states.RUNNING

    def _unanswered(self) -> None:
        """Reports to the user, once, if the state of the job stays unknown, and why."""
        silent_s = time.monotonic() - self._answered_at
        if self._said_unanswered or silent_s <= _UNANSWERED_S:
            return
        self._said_unanswered = True
        why = clients.why_unanswered(self.job)
        unknown = f"Slurm has not said for {silent_s:.0f} s what became of job {self.job}: {why}"
        self.say(f"{unknown}; its log is still shown here, Ctrl-C ends the job")

    def _refuse_for_ever(self) -> None:
        if not states.never(self.last):
            self._hopeful_at = time.monotonic()
        elif time.monotonic() - self._hopeful_at > states.NEVER_S:
            clients.cancel(self.study_job.name)
            raise ToolError(
                f"job {self.job} cannot start, for the reason {self.last.reason}, and was taken back",
                hint="ask for what the partition has: see burst.launcher.slurm.allocate in the recipe, then continue "
                "with --resume",
            )

    def end(self) -> None:
        """Asks the tuner to end as Ctrl-C does; cancels the job if it still waits or does not end."""
        if self.last.state not in states.PENDING:
            clients.run(["scancel", "--batch", "--signal=TERM", self.job])
            self.follow(patience_s=_PATIENCE_S)
        clients.cancel(self.study_job.name)


def _tell(queue: Queue, before: Queue, say: Callable[[str], None]) -> None:
    if queue.state in states.PENDING and queue != before:
        say(f"job {queue.job} is pending ({states.reason_of(queue)})")
    elif queue.state in states.RUNNING and before.state not in states.RUNNING:
        say(f"job {queue.job} runs")


@dataclass
class _Lines:
    """Reads the complete lines added to a file."""

    path: Path
    seen: int = 0

    def say(self, say: Callable[[str], None]) -> bool:
        """Passes the new lines to `say`; returns whether there were any."""
        lines = self._new()
        for line in lines:
            say(line)
        return bool(lines)

    def _new(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.seen)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.seen += len(whole)
        return whole.decode(errors="replace").splitlines()
