"""Export to Slurm: sbatch reads its lines, bash runs it, and each rank gets the command and its place in the job."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.export import export
from trainer.recipe import Recipe, load_recipe

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash on this machine")

SRUN = """#!/usr/bin/env bash
while [[ $1 == -* ]]; do
  case $1 in --container-*) printf '%s\\n' "$1" "$2" >> "$OUT/container"; shift 2 ;; *) shift ;; esac
done
for rank in 0 1 2 3; do
  SLURM_PROCID=$rank SLURM_LOCALID=$((rank % 2)) SLURM_NTASKS=4 SLURM_NTASKS_PER_NODE=2 "$@"
done
"""
SCONTROL = """#!/usr/bin/env bash
[ "$*" = "show hostnames node[7-8]" ] && printf 'node7\\nnode8\\n'
"""
RANK = f"""#!{sys.executable}
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NCCL_IB_HCA", "OMP_NUM_THREADS")
with open(os.environ["OUT"] + "/ranks", "a") as out:
    out.write(json.dumps([sys.argv[1:], {{name: os.environ.get(name) for name in names}}]) + "\\n")
"""


def recipe(**sections: Any) -> Recipe:
    document = {"name": "qwen", "model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 2}}
    return Recipe.model_validate(document | sections)


def ranks(text: str, folder: Path, *arguments: str, **env: str) -> list[Any]:
    """Runs the script under a fake Slurm; returns what each rank was given."""
    for name, program in {"srun": SRUN, "scontrol": SCONTROL, "python": RANK}.items():
        (folder / name).write_text(program)
        (folder / name).chmod(0o755)
    (folder / "job.sh").write_text(text)
    inside = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "OUT": str(folder),
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_JOB_ID": "41",
    }
    assert BASH is not None
    subprocess.run([BASH, str(folder / "job.sh"), *arguments], check=True, env=inside | env, cwd=folder)
    return [json.loads(line) for line in (folder / "ranks").read_text().splitlines()]


def test_every_rank_runs_the_recipe_on_made_up_data_and_knows_its_place(tmp_path: Path) -> None:
    given = ranks(export(recipe(), "slurm"), tmp_path, "--train-iters", "3")
    assert [(env["RANK"], env["LOCAL_RANK"]) for _, env in given] == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")]
    assert {(env["WORLD_SIZE"], env["MASTER_ADDR"], env["MASTER_PORT"]) for _, env in given} == {
        ("4", "node7", "20041")
    }
    argv = given[0][0]
    assert argv[:2] == ["-u", "pretrain_gpt.py"]
    assert "--mock-data" in argv
    assert argv[argv.index("--tokenizer-type") + 1] == "NullTokenizer"
    assert argv[-2:] == ["--train-iters", "3"]


def test_the_users_own_command_keeps_its_data_and_checkpoints_and_takes_the_recipes_words(tmp_path: Path) -> None:
    hostile = "/data/a b$(touch owned)"
    trainer = {
        "command": [
            "python",
            "train.py",
            "--data-path",
            hostile,
            "--load",
            "ckpt",
            "--micro-batch-size",
            "4",
            "--fork-flag",
        ],
        "env": {"NCCL_IB_HCA": "mlx5"},
    }
    given = ranks(export(recipe(trainer=trainer, training={"micro_batch_size": 2}), "slurm"), tmp_path)
    argv, env = given[3]
    assert argv[:5] == ["train.py", "--data-path", hostile, "--load", "ckpt"]
    assert "--fork-flag" in argv
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "--micro-batch-size"] == ["2"]
    assert "--mock-data" not in argv
    assert env["NCCL_IB_HCA"] == "mlx5"
    assert not (tmp_path / "owned").exists()


def test_the_recipes_words_come_where_the_command_says_so(tmp_path: Path) -> None:
    trainer = {"kind": "custom", "command": ["python", "wrap.py", "{args}", "--", "tail"]}
    argv, _ = ranks(export(recipe(trainer=trainer), "slurm"), tmp_path)[0]
    assert argv[0] == "wrap.py"
    assert argv[1].startswith("--")
    assert argv[-2:] == ["--", "tail"]


def test_what_prepares_the_users_shell_comes_before_the_launch_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "venv.sh").write_text('NCCL_IB_HCA="$ONE two $UNSET"; export NCCL_IB_HCA\nfalse\n')
    setup = ["export ONE=one", f"source {tmp_path}/venv.sh", "no_such_module load cuda"]
    text = export(recipe(trainer={"command": ["python", "train.py"], "setup": setup}), "slurm")
    assert ranks(text, tmp_path)[0][1]["NCCL_IB_HCA"] == "one two "
    own = export(recipe(trainer={"command": ["python", "train.py"], "setup": setup}), "megatron-lm")
    places = [own.index(line) for line in (*setup, "COMMAND=(", "torchrun")]
    assert places == sorted(places)


def test_a_secret_is_exported_from_the_shell_that_submits(tmp_path: Path) -> None:
    trainer = {"command": ["python", "train.py"], "env": {"NCCL_IB_HCA": "${NCCL_IB_HCA}"}}
    text = export(recipe(trainer=trainer), "slurm")
    assert "export NCCL_IB_HCA\n" in text
    assert ranks(text, tmp_path)[0][1]["NCCL_IB_HCA"] is None


def test_a_bridge_command_takes_overrides(tmp_path: Path) -> None:
    trainer = {
        "kind": "megatron-bridge",
        "command": ["python", "run_recipe.py", "train.micro_batch_size=8", "dataset.blend=x"],
    }
    argv, _ = ranks(export(recipe(trainer=trainer), "slurm"), tmp_path)[0]
    assert argv[:2] == ["run_recipe.py", "dataset.blend=x"]
    assert "train.micro_batch_size=1" in argv
    assert "train.micro_batch_size=8" not in argv


def test_a_container_is_used_where_one_is_named(tmp_path: Path) -> None:
    ranks(export(recipe(), "slurm"), tmp_path, CONTAINER="image:1", MOUNTS="/a:/b")
    assert (tmp_path / "container").read_text().splitlines()[:4] == [
        "--container-image",
        "image:1",
        "--container-mounts",
        "/a:/b",
    ]


def test_sbatch_finds_its_lines_before_the_first_command_and_the_header_names_what_only_the_user_knows() -> None:
    lines = export(recipe(), "slurm").splitlines()
    asked = [line for line in lines if line.startswith("#SBATCH")]
    assert {
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
    } <= set(asked)
    first = next(at for at, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(lines.index(line) for line in asked) < first
    assert any("--account=ACCOUNT --partition=PARTITION" in line for line in lines)
    assert "--gpus-per-node" not in export(load_recipe("cpu-moe"), "slurm")
