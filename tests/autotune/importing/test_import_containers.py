"""A script's container: bursts under Slurm run in the same, and an export starts it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.export import export
from autotune.importing.found import ImportOptions
from autotune.importing.reading import imported
from autotune.importing.recipe import Imported
from trainer.recipe.launching import slurm_settings

TRAINS = (
    "python pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 256 --bf16 --vocab-size 32000 --mock-data"
)
HEADER = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
ARGUMENTS = "IMAGE=/i/nemo.sqsh\nsrun --container-image $IMAGE --container-mounts /data:/data,/home"
PREFIX = "apptainer exec --nv --bind /data train.sif"


def read(folder: Path, text: str, given: dict[str, str] | None = None) -> Imported:
    (folder / "job.sbatch").write_text(text)
    return imported(ImportOptions(file=str(folder / "job.sbatch"), gpu="h100", given=given or {}))


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (
            f"{HEADER}{ARGUMENTS} {TRAINS}",
            {"container_image": "/i/nemo.sqsh", "container_mounts": ("/data:/data", "/home")},
        ),
        (
            f"{HEADER}#SBATCH --container-image=a/b:1\n#SBATCH --container-workdir=/w\nsrun {TRAINS}",
            {"container_image": "a/b:1", "srun": ("--container-workdir=/w",)},
        ),
        (
            f"{HEADER}#SBATCH --container-image=a/b:1\nsrun --container-image=c/d:2 --no-container-mount-home {TRAINS}",
            {"container_image": "c/d:2", "srun": ("--no-container-mount-home",)},
        ),
        (f"{HEADER}srun {PREFIX} {TRAINS}", {"prefix": tuple(PREFIX.split())}),
        (
            f'{HEADER}SIF=train.sif\nsrun apptainer exec --nv --env A=1 --env=B=2 --bind /data $SIF bash -c "{TRAINS}"',
            {"prefix": tuple(PREFIX.split())},
        ),
        (f"{HEADER}srun {TRAINS}", {}),
    ],
)
def test_bursts_start_in_the_container_of_the_script(text: str, settings: dict[str, Any], tmp_path: Path) -> None:
    made = read(tmp_path, text)
    assert slurm_settings(made.recipe.burst.launcher).model_dump(exclude_unset=True) == settings
    assert any("and so will bursts" in note for note in made.found.notes) == bool(settings)


def test_a_job_of_one_node_keeps_its_container_too(tmp_path: Path) -> None:
    made = read(tmp_path, f"{HEADER.replace('nodes=2', 'nodes=1')}srun --container-image=a/b:1 {TRAINS}")
    assert made.recipe.burst.launcher_kind == "slurm"


def test_a_container_has_what_bash_gives_it_and_can_be_set(tmp_path: Path) -> None:
    text = f"{HEADER}srun --container-image=$IMAGE --container-mounts=/data,$STORE:/store {TRAINS}"
    notes = read(tmp_path, text).found.notes
    assert any("IMAGE (line 4), STORE (line 4)" in note for note in notes)
    whole = slurm_settings(read(tmp_path, text, {"IMAGE": "a/b:1", "STORE": "/mnt"}).recipe.burst.launcher)
    assert (whole.container_image, whole.container_mounts) == ("a/b:1", ("/data", "/mnt:/store"))


def test_no_password_in_an_image_is_taken(tmp_path: Path) -> None:
    made = read(tmp_path, f"{HEADER}srun --container-image=docker://me:battery-staple@host/a:1 {TRAINS}")
    assert "battery-staple" not in made.recipe.to_yaml() + " ".join(made.found.notes)


def test_a_container_without_slurm_is_left_to_the_user(tmp_path: Path) -> None:
    made = read(tmp_path, f"apptainer exec --nv a.sif torchrun --nproc-per-node 8 {TRAINS.removeprefix('python ')}")
    assert made.recipe.burst.launcher_kind == "local"
    assert any("start moe-autotune in it" in note for note in made.found.notes)


@pytest.mark.parametrize("start", [f"{ARGUMENTS} --container-workdir=/w", f"srun {PREFIX}"])
def test_an_export_starts_the_container_again(start: str, tmp_path: Path) -> None:
    recipe = read(tmp_path, f"{HEADER}{start} {TRAINS}").recipe
    again = read(tmp_path, export(recipe, "slurm")).recipe
    assert again.burst.launcher == recipe.burst.launcher
