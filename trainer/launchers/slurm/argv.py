"""The commands that start ranks under Slurm: srun inside a job, sbatch for a job.

Pure. One task per node runs our keeper, which starts torchrun's agent. Sources: srun(1), sbatch(1) of Slurm 22.05 and
24.05.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.launchers.slurm.queue import slurm_log
from trainer.recipe.launching import SlurmSettings

# Variables of the tuner's own job that srun would apply to our step: one GPU per task, a memory limit that contradicts
# --mem
OBEYED = (
    *("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_NTASKS", "SLURM_NPROCS"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_CORE"),
    *("SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_CPU_BIND", "SLURM_CPUS_PER_GPU", "SLURM_GPUS"),
    *("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_GPUS_PER_NODE", "SLURM_DISTRIBUTION", "SLURM_EXCLUSIVE"),
)
_SHORT = {
    "-p": "--partition",
    "-A": "--account",
    "-q": "--qos",
    "-C": "--constraint",
    "-x": "--exclude",
    "-t": "--time",
    "-N": "--nodes",
}


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """One start: its name, number of nodes, excluded nodes and keeper command.

    `gpus_per_node`: None if Slurm is not asked for GPUs. In a job with --gpus-per-task or --gpus, a step that
    requests no GPUs gets one.
    """

    name: str
    nodes: int
    exclude: Sequence[str]
    keeper: Sequence[str]
    gpus_per_node: int | None = None


def srun_argv(request: StartRequest, settings: SlurmSettings, *, inside: bool) -> list[str]:
    """Returns the command of a step with one task per node.

    `inside`: in an allocation in which other steps (the tuner's own) hold resources.
    """
    ours = [
        *(["--overlap"] if inside else []),
        f"--nodes={request.nodes}",
        f"--ntasks={request.nodes}",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=1",
        "--mem=0",  # all that the job has on a node
        "--cpu-bind=none",
        *_gpus(request),
        f"--job-name={request.name}",
        *_exclude(request.exclude if inside else ()),
        *([f"--container-image={settings.container_image}"] if settings.container_image else []),
        *([f"--container-mounts={','.join(settings.container_mounts)}"] if settings.container_mounts else []),
    ]
    return ["srun", *unless_theirs(ours, settings.srun), *settings.srun, *request.keeper]


def sbatch_argv(request: StartRequest, settings: SlurmSettings, *, minutes: int, control: Path) -> list[str]:
    """Returns the command that submits a job, which Slurm never requeues.

    Nodes are exclusive, since another job there would be measured too.
    """
    ours = [
        *("--parsable", "--no-requeue", "--exclusive", "--mem=0"),
        f"--nodes={request.nodes}",
        "--ntasks-per-node=1",
        f"--job-name={request.name}",
        f"--time={minutes}",
        f"--output={slurm_log(control)}",
        *sbatch_options(settings),
        *_gpus(request),
        *_exclude(request.exclude),
    ]
    return ["sbatch", *unless_theirs(ours, settings.sbatch), *settings.sbatch, str(script_path(control))]


def sbatch_options(settings: SlurmSettings) -> list[str]:
    """Returns the options of sbatch for partition, account, QOS and constraint."""
    values = {name: getattr(settings, name) for name in ("partition", "account", "qos", "constraint")}
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def script_path(control: Path) -> Path:
    return control / "job.sh"


def script(request: StartRequest, settings: SlurmSettings) -> str:
    """Returns the job's script: the step, without the variables of sbatch that srun would obey."""
    return f"#!/bin/sh\nunset {' '.join(OBEYED)}\nexec {shlex.join(srun_argv(request, settings, inside=False))}\n"


def environment_inside(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for a step of ours in an allocation."""
    return {name: value for name, value in environ.items() if name not in OBEYED}


def environment_outside(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for sbatch, without variables of a job that the tuner may itself be in."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")
    return {name: value for name, value in environ.items() if not name.startswith("SLURM_") or name in kept}


def _gpus(request: StartRequest) -> list[str]:
    return [f"--gpus-per-node={request.gpus_per_node}"] if request.gpus_per_node else []


def _exclude(nodes: Sequence[str]) -> list[str]:
    return [f"--exclude={','.join(nodes)}"] if nodes else []


def unless_theirs(ours: Iterable[str], theirs: Sequence[str]) -> list[str]:
    """Returns our options without those that the user also sets; GPUs are requested either by the user's options or by
    ours."""
    names = {_SHORT.get(word[:2], word.partition("=")[0]) for word in theirs}
    names |= (
        {"--gpus-per-node"} if any(name.startswith(("--gpus", "--gres")) or name == "-G" for name in names) else set()
    )
    names |= {"--mem"} if {"--mem-per-cpu", "--mem-per-gpu"} & names else set()
    names |= {"--exclusive"} if {"--oversubscribe", "-s"} & names else set()
    return [word for word in ours if word.partition("=")[0] not in names]
