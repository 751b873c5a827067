"""Launcher `slurm`: one step of the tuner's allocation for each start, or one job for each burst.

Inside an allocation (salloc, sbatch) a study waits in the queue once. Outside, on a login node, every burst is a job
(`job: per-burst`).
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainer.errors import ToolError
from trainer.interpreter import module_command
from trainer.launchers.local import rank_environment
from trainer.launchers.nodes import folder
from trainer.launchers.nodes.avoid import avoided, unneeded
from trainer.launchers.nodes.processes import NodesProcesses
from trainer.launchers.nodes.start import keeper_argv, prepare_start
from trainer.launchers.nodes.supervise import start_supervise
from trainer.launchers.processes import sweep
from trainer.launchers.slurm import argv as words
from trainer.launchers.slurm import clients
from trainer.launchers.slurm.allocation import refuse_ended
from trainer.launchers.slurm.monitor import SlurmMonitor
from trainer.recipe import Recipe
from trainer.recipe.launching import SlurmSettings, slurm_settings

_FOLLOW = tuple(module_command("trainer.launchers.slurm.job"))
_SPARE_S = 900.0  # part of a job's time limit beyond the sum of the burst's deadlines: for start, trace and end


@dataclass(frozen=True, kw_only=True)
class SlurmLauncher:
    """Launcher under Slurm; `trainer.launchers.Launcher` documents its methods.

    `home` is a folder of this study alone: anything that still runs under its name when something is started belongs to
    a tuner that is gone. `limit_s`: the time limit of a job.
    """

    settings: SlurmSettings
    home: Path
    limit_s: float
    on_gpus: bool
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def keeps_ranks(self) -> bool:
        """Returns whether the tuner runs in an allocation: one job per burst frees the nodes between bursts."""
        return self.settings.job == "allocation"

    def start(
        self, argv: Sequence[str], *, env: dict[str, str], nodes: int, ranks_per_node: int, control: Path
    ) -> NodesProcesses:
        """Starts the ranks, after ending what runs under this study's name in any job.

        Raises ToolError if there is no Slurm, or no allocation that is large enough.
        """
        job = self.allocation(nodes)
        sweep()
        if clients.named(self._prefix):
            clients.cancel(self._prefix)
        prepared = prepare_start(
            control,
            argv,
            env=env,
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            python=self.python,
            interface=self.settings.interface,
            outlives_s=None if job else self.limit_s,
        )
        request = self._request(nodes, ranks_per_node, control, prepared.token, job)
        command = words.srun_argv(request, self.settings, inside=True) if job else self._job(request, control)
        strip = words.environment_inside if job else words.environment_outside
        return self._processes(nodes, ranks_per_node, control, job, command, strip(prepared.variables), prepared.mark)

    def adopt(self, *, nodes: int, ranks_per_node: int, control: Path) -> NodesProcesses | None:
        """Returns the job of a burst that an earlier tuner submitted, whether it waits, runs or has ended.

        None if it never ran on a node and never will, or if the ranks ended with the tuner.
        """
        if self.keeps_ranks or folder.read(folder.start_path(control), folder.Start) is None:
            return None
        clients.require("scancel", "squeue", "scontrol")
        started = [each.job for each in folder.started_nodes(control, nodes)]
        jobs = [*(each for each in clients.named(self._name(control)) if "." not in each), *started]
        if not jobs:
            return None
        mark = uuid.uuid4().hex
        env = words.environment_outside(rank_environment({}, mark=mark))
        return self._processes(nodes, ranks_per_node, control, None, [*_FOLLOW, str(control), jobs[0]], env, mark)

    def _processes(
        self,
        nodes: int,
        ranks_per_node: int,
        control: Path,
        job: str | None,
        command: Sequence[str],
        env: Mapping[str, str],
        mark: str,
    ) -> NodesProcesses:
        name = self._name(control)
        queue_s = None if self.settings.queue_minutes is None else 60.0 * self.settings.queue_minutes
        return NodesProcesses(
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            control=control,
            home=self.home,
            mark=mark,
            monitor=SlurmMonitor(control=control, name=name, job=job, queue_s=queue_s),
            supervise=start_supervise(
                command,
                control=control,
                env=env,
                last_command=module_command("trainer.launchers.slurm.clients", name),
                stays=job is None,
            ),
        )

    @property
    def _prefix(self) -> str:
        return f"moe-{hashlib.sha256(str(self.home.resolve()).encode()).hexdigest()[:8]}-"

    def _name(self, control: Path) -> str:
        """Returns the name of the step or job: the study's prefix, and the start or burst."""
        return f"{self._prefix}{control.name}"

    @property
    def python(self) -> str:
        return self.settings.python or sys.executable

    def allocation(self, nodes: int) -> str | None:
        """Returns the job that the tuner runs in; None if every burst is a job.

        Raises ToolError if it runs in none or the job has too few nodes, AllocationEndedError if the job is over.
        """
        if self.settings.job == "per-burst":
            clients.require("sbatch", "scancel", "squeue", "scontrol")
            return None
        job = self.environ.get("SLURM_JOB_ID")
        if not job:
            raise ToolError(
                "launcher slurm runs in an allocation, and there is none here",
                hint=f"start the tuner inside `salloc --nodes={nodes}` or a batch script, or write burst.launcher: "
                f"{{slurm: {{allocate: '--nodes={nodes} --time=8:00:00'}}}} or {{slurm: {{job: per-burst}}}}",
            )
        clients.require("srun", "scancel", "squeue", "scontrol")
        refuse_ended(job)
        held = int(self.environ.get("SLURM_JOB_NUM_NODES", nodes))
        if held < nodes:
            raise ToolError(
                f"the recipe asks for {nodes} nodes, and job {job} has {held}",
                hint=f"allocate {nodes} nodes, or set cluster.nodes to {held}",
            )
        return job

    def _request(
        self, nodes: int, ranks_per_node: int, control: Path, token: str, job: str | None
    ) -> words.StartRequest:
        bad = avoided(self.home)
        if job is not None:
            there = clients.hostnames(self.environ.get("SLURM_JOB_NODELIST", ""))
            bad = unneeded([*self.settings.exclude, *bad], there, nodes)
        else:
            bad = [*self.settings.exclude, *bad]
        return words.StartRequest(
            name=self._name(control),
            nodes=nodes,
            exclude=list(dict.fromkeys(bad)),
            gpus_per_node=ranks_per_node if self._asks_for_gpus(job) else None,
            keeper=keeper_argv(self.settings.prefix, python=self.python, control=control, token=token),
        )

    def _asks_for_gpus(self, job: str | None) -> bool:
        return self.on_gpus and (job is None or clients.has_gpus(clients.job_record(job) or {}))

    def _job(self, request: words.StartRequest, control: Path) -> list[str]:
        """Writes the job's script; returns the command that submits and follows it.

        While Slurm has too few other nodes, the avoided node that failed first is used again.
        """
        words.script_path(control).write_text(words.script(request, self.settings))
        minutes = self.settings.time_limit_minutes or math.ceil(self.limit_s / 60)
        spare = [node for node in request.exclude if node not in self.settings.exclude]
        while True:
            fewer = replace(request, exclude=[*self.settings.exclude, *spare])
            sbatch = words.sbatch_argv(fewer, self.settings, minutes=minutes, control=control)
            if not spare or clients.takes(sbatch, words.environment_outside(self.environ)):
                return [*_FOLLOW, str(control), *sbatch]
            spare = spare[1:]


def slurm_launcher(recipe: Recipe, home: Path) -> SlurmLauncher:
    """Returns the launcher that the recipe asks for."""
    first_s = recipe.trainer.first_step_s if recipe.trainer is not None else 0.0
    return SlurmLauncher(
        settings=slurm_settings(recipe.burst.launcher),
        home=home,
        limit_s=first_s + recipe.burst.deadline_s + _SPARE_S,
        on_gpus=not recipe.hardware.is_cpu,
    )
