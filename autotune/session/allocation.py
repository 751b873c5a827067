"""A study that runs in a Slurm job of its own: submitted, or found where it runs, and looked at from here.

The tuner in the job does everything; here its log is shown. Ctrl-C stops it there, in order; where only this process or
its terminal goes, the job goes on, and `--resume` looks at it again.
"""

from __future__ import annotations

import shlex
import sys
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
from autotune.tuning.standing import RESUMABLE
from autotune.tuning.study import RESOLVED, Study
from trainer.launchers.slurm.night import Look, night_of
from trainer.recipe import Recipe

BY_ITSELF = ("COMPLETED", "FAILED")  # states of a job whose tuner came to its end, and said how to go on


@dataclass(frozen=True, kw_only=True)
class InAllocation:
    """`given` is how the command named the recipe, `notify` what the tuner runs at the end."""

    recipe: Recipe
    given: str
    folder: Path
    limits: Limits
    console: Console
    notify: str | None

    def run(self, open_study: Callable[[Listener], Study]) -> History:
        """What the study knows when its job is over. `open_study` is called where no job of it runs."""
        night = night_of(self.recipe, study=self.folder.resolve(), argv=self.argv())
        job = night.running()
        if job is None:
            with closing(open_study(lambda event, history: None)):
                pass  # the folder is made, or found to be a study that can go on; the job opens it again
            job = night.submit()
            self._say(f"study {self.folder} in job {job}; Ctrl-C stops it")
        else:
            self._say(f"study {self.folder} in job {job}, which runs already; Ctrl-C stops it")
        self._look_on(Look(night=night, job=job, say=self._say))
        write_report(self.folder)
        return read_study(self.folder)

    def _look_on(self, look: Look) -> None:
        with Interruption() as interruption:
            try:
                look.follow()
            except KeyboardInterrupt:
                if not interruption.by_ctrl_c:
                    raise
                interruption.settle()
                self._say(f"ending job {look.job}")
                look.end()
        ended = read_study(self.folder).ended
        cut_off = ended is not None and ended.status in RESUMABLE and look.last.state not in BY_ITSELF
        if ended is None or cut_off:
            again = shlex.join(["moe-autotune", "run", self.given, "--study", str(self.folder), "--resume"])
            when = " before the study did" if ended is None else ""
            self._say(f"job {look.job} ended {look.last.state or 'unseen'}{when}; resume with: {again}")

    def argv(self) -> list[str]:
        """What the job runs: this command again, inside."""
        study, limits = self.folder.resolve(), self.limits
        more = {
            "--max-gpu-hours": limits.max_gpu_hours,
            "--until": None if limits.until is None else _moment_words(limits.until),
            "--gpu-hour-price": limits.gpu_hour_price,
            "--notify": self.notify,
        }
        return [
            *(sys.executable, "-m", "autotune.cli", "run", str(study / RESOLVED), "--study", str(study), "--resume"),
            *("--budget", str(limits.budget)),
            *(word for name, value in more.items() if value is not None for word in (name, str(value))),
        ]

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _moment_words(at: float) -> str:
    """With day and zone: the job may start after midnight, on a node whose clock shows another zone."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")
