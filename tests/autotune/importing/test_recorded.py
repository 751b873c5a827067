"""Recordings of launchers that are not scripts, and of real starts from inside, become recipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli import main
from trainer.engines.command.injected_folder import INJECTED
from trainer.recipe import load_recipe
from trainer.recording import record
from trainer.recording.jail import Isolation
from trainer.recording.programs import Values

FLAGS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --bf16"
)
LAUNCHER = f"""
import os, subprocess
subprocess.run(["torchrun", "--nproc_per_node", "8", "pretrain_gpt.py", *{FLAGS.split()!r}], check=True)
open("left-behind", "w").write("x")
"""


def test_a_launcher_in_python_is_recorded_and_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "sekrit")
    Path("launch.py").write_text(LAUNCHER)
    assert main(["record", "-o", "r.json", "--", sys.executable, "launch.py"]) == 0
    assert sorted(os.listdir()) == ["launch.py", "r.json"]
    assert "sekrit" not in Path("r.json").read_text()
    assert main(["import", "r.json", "--gpu", "h100", "-o", "r.yaml"]) == 0
    recipe = load_recipe("r.yaml")
    assert recipe.trainer is not None
    assert recipe.trainer.command[:2] == ("python", "pretrain_gpt.py")
    assert (recipe.world_size, recipe.training.global_batch_size) == (8, 64)


def test_a_command_that_trains_nothing_is_refused_with_what_it_did(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "--", "bash", "-c", "echo nothing to do; exit 3"]) == 2
    assert "it ended in line 1 (exit 3) with code 3: nothing to do" in " ".join(capfd.readouterr().err.split())


def test_a_real_start_records_the_arguments_that_its_launcher_made(tmp_path: Path) -> None:
    (tmp_path / "megatron" / "training").mkdir(parents=True)
    (tmp_path / "megatron" / "training" / "global_vars.py").write_text("def set_args(args): pass\n")
    values = "num_layers=4, hidden_size=512, num_attention_heads=8, seq_length=1024, micro_batch_size=1, world_size=8"
    (tmp_path / "own.py").write_text(
        "import argparse, megatron.training.global_vars as g\n"
        f"g.set_args(argparse.Namespace({values}, global_batch_size=64, padded_vocab_size=32000, bf16=True))\n"
    )
    record, env = tmp_path / "start.json", {"PATH": os.environ["PATH"], "RANK": "0", "API_KEY": "sekrit"}
    subprocess.run(
        [sys.executable, "own.py", "--config", "x.yaml"], cwd=tmp_path, check=True,
        env={**env, "PYTHONPATH": str(INJECTED), "MOE_AUTOTUNE_RECORD": str(record)},
    )  # fmt: skip
    assert "sekrit" not in record.read_text()
    assert json.loads(record.read_text())["inside"]["words"][1:] == ["own.py", "--config", "x.yaml"]
    assert main(["import", str(record), "--gpu", "h100", "-o", str(tmp_path / "r.yaml")]) == 0
    assert load_recipe(str(tmp_path / "r.yaml")).training.global_batch_size == 64


def test_what_only_the_job_knows_comes_back_as_its_expression(tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    script.write_text(
        f"S=$(( $$ % 7 ))\ntorchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS} --seed $S --save /c/$RANDOM\n"
    )
    assert main(["import", str(script), "--gpu", "h100"]) == 2
    assert main(["import", str(script), "--gpu", "h100", "--set=--seed=5", "-o", str(tmp_path / "r.yaml")]) == 0
    trainer = load_recipe(str(tmp_path / "r.yaml")).trainer
    assert trainer is not None
    assert trainer.expand == ("/c/$RANDOM",)
    assert trainer.command[-4:] == ("--seed", "5", "--save", "/c/$RANDOM")


def test_a_test_of_a_file_is_said_and_can_be_decided_otherwise(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "s.sh"
    script.write_text(f"[ -f /c/last ] && X=--finetune\ntorchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS} $X\n")
    assert main(["import", str(script), "--gpu", "h100", "-o", str(tmp_path / "r.yaml")]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "line 1: /c/last is not there; otherwise with --finetune (--exists /c/last)" in said
    assert main(["import", str(script), "--gpu", "h100", "--exists", "/c/last", "-o", str(tmp_path / "e.yaml")]) == 0
    trainer = load_recipe(str(tmp_path / "e.yaml")).trainer
    assert trainer is not None
    assert trainer.command[-1] == "--finetune"


def test_the_job_that_a_script_asks_for_is_asked_for_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "s.sh"
    header = "#SBATCH -A proj -p gpu -t 04:00:00 -N 2 --gpus-per-node=h100:8\n"
    script.write_text(f"#!/bin/bash\n{header}srun --ntasks-per-node=8 python pretrain_gpt.py {FLAGS}\n")
    assert main(["import", str(script), "-o", str(tmp_path / "r.yaml")]) == 0
    assert main(["export", str(tmp_path / "r.yaml"), "--to", "slurm"]) == 0
    said = capfd.readouterr().out
    assert all(f"#SBATCH {word}\n" in said for word in ("--account=proj", "--partition=gpu", "--time=04:00:00"))


def test_where_nothing_isolates_a_script_nothing_is_run_without_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    runs: list[Isolation] = []

    def refusing(asked: record.JobCommand, values: Values, isolation: Isolation) -> dict[str, object]:
        runs.append(isolation)
        return {"impossible": "not permitted"} if isolation != Isolation.NONE else run(asked, values, isolation)

    run = record._run
    monkeypatch.setattr(record, "_run", refusing)
    record.isolation_here.cache_clear()
    script = tmp_path / "s.sh"
    script.write_text(f"echo x > {tmp_path}/made\ntorchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS}\n")
    words = ["import", str(script), "--gpu", "h100", "-o", str(tmp_path / "r.yaml")]
    assert main(words) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "nothing was run, as nothing would keep it from changing files: namespaces: not permitted" in said
    assert "moe-autotune record -- COMMAND" in said
    assert Isolation.NONE not in runs
    assert main([*words, "--trust"]) == 0
    assert sorted(os.listdir(tmp_path)) == ["r.yaml", "s.sh"]
    record.isolation_here.cache_clear()
