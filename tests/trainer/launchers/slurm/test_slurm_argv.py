"""Checks the command lines of Slurm's programs word by word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.places import ROOT
from trainer.launchers.nodes.start import keeper_argv
from trainer.launchers.slurm.argv import (
    StartRequest,
    environment_inside,
    environment_outside,
    sbatch_argv,
    script,
    srun_argv,
)
from trainer.recipe.launching import SlurmSettings

KEEPER = ["env", "PYTHONPATH=/root", "PYTHONSAFEPATH=1", "python", "-m", "trainer.launchers.nodes.keeper", "/c", "t"]
ASKED = StartRequest(name="moe-1", nodes=2, exclude=["n7", "n8"], keeper=KEEPER)
ON_GPUS = replace(ASKED, gpus_per_node=8)


def srun(*, inside: bool = True, **settings: Any) -> list[str]:
    return srun_argv(ASKED, SlurmSettings(**settings), inside=inside)


def sbatch(asked: StartRequest = ON_GPUS, **settings: Any) -> list[str]:
    return sbatch_argv(asked, SlurmSettings(**settings), minutes=25, control=Path("/c"))


def test_a_step_has_one_task_per_node_overlaps_other_steps_and_has_all_of_the_jobs_memory() -> None:
    assert srun() == [
        *("srun", "--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--mem=0"),
        *("--cpu-bind=none", "--job-name=moe-1", "--exclude=n7,n8", *KEEPER),
    ]


def test_in_a_job_of_its_own_the_step_is_alone_and_the_job_has_left_the_bad_nodes_out() -> None:
    assert {"--overlap", "--exclude=n7,n8"} & set(srun(inside=False)) == set()
    assert "--exclude=n7,n8" in sbatch()


def test_a_job_is_never_requeued_has_its_own_limit_and_whole_nodes() -> None:
    assert sbatch(partition="gpu", account="a", qos="q", constraint="h100") == [
        *("sbatch", "--parsable", "--no-requeue", "--exclusive", "--mem=0", "--nodes=2", "--ntasks-per-node=1"),
        *("--job-name=moe-1", "--time=25", "--output=/c/slurm.log", "--partition=gpu", "--account=a", "--qos=q"),
        *("--constraint=h100", "--gpus-per-node=8", "--exclude=n7,n8", "/c/job.sh"),
    ]


def test_a_recipe_of_cpus_asks_for_no_gpus() -> None:
    assert not any("gpu" in word for word in [*sbatch(ASKED), *srun()])


def test_a_step_asks_for_all_gpus_of_a_node() -> None:
    assert "--gpus-per-node=8" in srun_argv(ON_GPUS, SlurmSettings(), inside=True)
    assert "--gpus-per-node=8" in srun_argv(ON_GPUS, SlurmSettings(sbatch=("--gpus=16",)), inside=False)


def test_the_users_words_take_the_place_of_ours() -> None:
    words = sbatch(sbatch=("--gres=gpu:4", "--mem-per-cpu=2G", "-p", "gpu", "--no-kill"), partition="cpu")
    assert {"--gpus-per-node=8", "--mem=0", "--partition=cpu"} & set(words) == set()
    assert words[-6:] == ["--gres=gpu:4", "--mem-per-cpu=2G", "-p", "gpu", "--no-kill", "/c/job.sh"]
    assert "--exclusive" not in sbatch(sbatch=("--oversubscribe",))
    assert "--cpu-bind=none" not in srun(srun=("--cpu-bind=cores",))


def test_containers_of_pyxis_are_words_of_srun_and_those_of_apptainer_stand_before_the_keeper() -> None:
    words = srun(container_image="nemo.sqsh", container_mounts=("/data:/data", "/home"))
    assert {"--container-image=nemo.sqsh", "--container-mounts=/data:/data,/home"} < set(words)
    prefix = ("apptainer", "exec", "--nv", "nemo.sif")
    keeper = keeper_argv(prefix, python="python3", control=Path("/c"), token="t")
    assert keeper[:6] == [*prefix, "env", f"PYTHONPATH={ROOT}"]
    assert keeper[-4:] == ["-m", "trainer.launchers.nodes.keeper", "/c", "t"]


def test_the_script_frees_the_step_of_what_the_jobs_own_words_would_tell_it() -> None:
    text = script(ASKED, SlurmSettings())
    assert text.startswith("#!/bin/sh\nunset SLURM_MEM_PER_NODE")
    assert "exec srun --nodes=2" in text


def test_a_step_does_not_obey_one_gpu_a_task_of_the_job_around_it() -> None:
    inside = environment_inside({"SLURM_JOB_ID": "5", "SLURM_GPUS_PER_TASK": "1", "SLURM_MEM_PER_CPU": "2", "A": "b"})
    assert inside == {"SLURM_JOB_ID": "5", "A": "b"}


def test_a_job_knows_nothing_of_a_job_around_the_tuner() -> None:
    found = environment_outside({"SLURM_JOB_ID": "5", "SLURM_CONF": "/c", "SLURM_MEM_PER_NODE": "1", "A": "b"})
    assert found == {"SLURM_CONF": "/c", "A": "b"}
