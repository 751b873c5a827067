"""Runs a study in a Slurm job of its own: submits the job, or finds the running one, and follows it.

The tuner in the job does the work; its log is shown here. Ctrl-C makes the job stop cleanly; if only this process or
its terminal ends, the job continues, and `--resume` follows it again.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console

from autotune.report import write_report
from autotune.session.interruption import Interruption
from autotune.session.session import Limits
from autotune.tuning.history import History
from autotune.tuning.journal import Listener, read_study
from autotune.tuning.study import RESOLVED, Study
from autotune.tuning.study_status import RESUMABLE
from trainer.interpreter import module_command
from trainer.launchers.slurm.study_job import Follower, study_job_of
from trainer.recipe import Recipe

BY_ITSELF = ("COMPLETED", "FAILED")  # states of a job whose tuner ended by itself and printed how to resume


@dataclass(frozen=True, kw_only=True)
class InAllocation:
    """A study in a Slurm job.

    `given`: the recipe as named on the command line; `notify`: the command that the tuner runs at the end.
    """

    recipe: Recipe
    given: str
    folder: Path
    limits: Limits
    console: Console
    notify: str | None

    def run(self, open_study: Callable[[Listener], Study]) -> History:
        """Returns the history when the job has ended. `open_study` is called if no job of the study is running."""
        study_job = study_job_of(self.recipe, study=self.folder.resolve(), argv=self.argv())
        job = study_job.running()
        if job is None:
            with closing(open_study(lambda event, history: None)):
                pass  # creates the folder, or checks that its study can be resumed; the job opens it again
            job = study_job.submit()
            self._say(f"study {self.folder} in job {job}; Ctrl-C stops it")
        else:
            self._say(f"study {self.folder} in job {job}, which runs already; Ctrl-C stops it")
        self._follow(Follower(study_job=study_job, job=job, say=self._say))
        write_report(self.folder)
        return read_study(self.folder)

    def _follow(self, follower: Follower) -> None:
        with Interruption() as interruption:
            try:
                follower.follow()
            except KeyboardInterrupt:
                if not interruption.by_ctrl_c:
                    raise
                interruption.settle()
                self._say(f"ending job {follower.job}")
                follower.end()
        ended = read_study(self.folder).ended
        cut_off = ended is not None and ended.status in RESUMABLE and follower.last.state not in BY_ITSELF
        if ended is None or cut_off:
            again = shlex.join(["moe-autotune", "run", self.given, "--study", str(self.folder), "--resume"])
            when = " before the study did" if ended is None else ""
            self._say(f"job {follower.job} ended {follower.last.state or 'unseen'}{when}; resume with: {again}")

    def argv(self) -> list[str]:
        """Returns the command of the job: this command with `--resume`."""
        study, limits = self.folder.resolve(), self.limits
        more = {
            "--max-gpu-hours": limits.max_gpu_hours,
            "--ablate": limits.ablate or None,
            "--until": None if limits.until is None else _moment_words(limits.until),
            "--gpu-hour-price": limits.gpu_hour_price,
            "--notify": self.notify,
        }
        return [
            *module_command("autotune.cli", "run", str(study / RESOLVED), "--study", str(study), "--resume"),
            *("--budget", str(limits.budget)),
            *(() if limits.probe else ("--no-probe",)),
            *(word for name, value in more.items() if value is not None for word in (name, str(value))),
        ]

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _moment_words(at: float) -> str:
    """Formats a time with date and zone, since the job may start on another day, on a node in another time zone."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")
