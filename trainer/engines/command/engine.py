"""Engine `command`: starts the user's own trainer for a few steps, reads its log and traces, and ends it.

Every burst starts new processes, since the trainer knows nothing of bursts.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from trainer.burst import Burst, Outcome, write_burst, write_outcome
from trainer.engines.command.evidence import evidence_of
from trainer.engines.command.flight import flight_text, read_flights
from trainer.engines.command.follow import Follower, Patience, patience_with
from trainer.engines.command.job import Job
from trainer.engines.command.lines import Reading, patterns_with
from trainer.engines.command.outcome import Ended, outcome_of
from trainer.engines.command.setup import not_prepared
from trainer.engines.command.stacks import ask_for_stacks
from trainer.engines.command.traces import collect
from trainer.errors import ToolError
from trainer.failures import Evidence
from trainer.frameworks.bounds import bounds_of
from trainer.launchers import Processes
from trainer.launchers.control import JOBS, new_control
from trainer.launchers.extensions import extensions_environment
from trainer.launchers.open import open_launcher
from trainer.recipe import Recipe
from trainer.recipe.sections import TrainerSettings


class CommandEngine:
    """Engine that runs the user's own trainer; `trainer.engines.Engine` documents its methods."""

    def __init__(
        self,
        state_dir: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: Callable[[Recipe, TrainerSettings], Patience] = patience_with,
    ) -> None:
        self._state_dir, self._clock, self._patience = state_dir, clock, patience

    def run(self, burst: Burst) -> Outcome:
        job = _job(burst)
        write_burst(burst)
        started = self._clock()
        job.clear()
        launcher = open_launcher(burst.recipe, self._state_dir)
        theirs = job.environment()
        processes = launcher.start(
            job.argv(),
            env=extensions_environment(self._state_dir, theirs) | theirs,
            nodes=burst.recipe.cluster.nodes,
            ranks_per_node=burst.recipe.ranks_per_node,
            control=new_control(self._state_dir) if launcher.keeps_ranks else self._control(burst),
        )
        return self._outcome(job, processes, lambda: self._clock() - started - processes.queued_s)

    def adopt(self, burst: Burst) -> Outcome | None:
        """Takes over a job that an earlier tuner started, whether or not it still runs; reads its output again from the
        start."""
        processes = open_launcher(burst.recipe, self._state_dir).adopt(
            nodes=burst.recipe.cluster.nodes,
            ranks_per_node=burst.recipe.ranks_per_node,
            control=self._control(burst),
        )
        if processes is None:
            return None
        return self._outcome(_job(burst), processes, lambda: processes.ran_s)

    def _control(self, burst: Burst) -> Path:
        return (self._state_dir / JOBS / burst.folder.name).resolve()

    def _outcome(self, job: Job, processes: Processes, cost_s: Callable[[], float]) -> Outcome:
        """Waits for the trainer's end, and writes and returns the outcome.

        Raises ToolError if no rank got through its setup.
        """
        reading = Reading(patterns=patterns_with(job.framework.log_patterns, job.trainer.patterns))
        ended = self._follow(job, processes, reading)
        if ended.not_prepared is not None and not ended.not_prepared.others:
            shutil.rmtree(processes.control, ignore_errors=True)  # leaves nothing for a later tuner to adopt
            raise ended.not_prepared.error()
        outcome = outcome_of(job, reading, ended)
        outcome = msgspec.structs.replace(
            outcome,
            failure=outcome.failure and processes.blame(outcome.failure),
            cost_s=round(cost_s(), 3),
        )
        outcome = write_outcome(job.burst.folder, outcome)
        shutil.rmtree(processes.control, ignore_errors=True)  # the burst's folder has copies of its logs
        return outcome

    def close(self) -> None:
        """Does nothing: nothing is kept between bursts."""

    def _follow(self, job: Job, processes: Processes, reading: Reading) -> Ended:
        kills_before = processes.rank_observer.oom_kills()
        follower = Follower(
            processes=processes,
            reading=reading,
            bounds=job.bounds,
            patience=self._patience(job.burst.recipe, job.trainer),
        )
        try:
            followed = follower.follow()
            code = processes.code
            if followed.overdue_s is not None:
                ask_for_stacks(processes, job.ranks_folder, job.log_folder, injected=job.trainer.inject)
        finally:
            processes.end()
        follower.read()
        evidence = Evidence(
            ranks=evidence_of(processes, job.folder, trained=bool(reading.iterations)),
            launcher_code=code,
            launcher_log=processes.log,
            overdue_s=followed.overdue_s,
            ended_by=processes.ended_by if code is not None else None,
            oom_kills=processes.rank_observer.oom_kills() - kills_before,
        )
        job.keep_logs(processes)
        collect(job.written, job.folder / "trace")
        flight = (
            flight_text(read_flights(job.ranks_folder, processes.world_size))
            if followed.overdue_s is not None
            else None
        )
        return Ended(
            followed=followed,
            code=code,
            evidence=evidence,
            flight=flight,
            not_prepared=not_prepared(
                job.trainer.setup,
                job.ranks_folder,
                ranks=processes.world_size,
                deaths=processes.reported_deaths,
                outputs=processes.outputs,
                overdue_s=followed.overdue_s,
            ),
        )


def _job(burst: Burst) -> Job:
    trainer = trainer_of(burst.recipe)
    return Job(burst=burst, trainer=trainer, bounds=bounds_of(burst.recipe), folder=burst.folder.resolve())


def trainer_of(recipe: Recipe) -> TrainerSettings:
    """Returns the trainer of the recipe. Raises ToolError if it has none."""
    if recipe.trainer is None:
        raise ToolError(
            "engine command runs the recipe's trainer, and the recipe has none", hint="write trainer.command"
        )
    return recipe.trainer
