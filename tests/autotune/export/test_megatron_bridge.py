"""Export to Megatron-Bridge: what it cannot express, the overrides as bash reads them, and, where Bridge is installed,
what Bridge makes of them."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from autotune.export import Context, export
from benchmarks import bridge_imports
from benchmarks.places import ROOT
from trainer.recipe import Recipe

BASH = shutil.which("bash")
QWEN = {"name": "qwen", "model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 2}}


def test_what_an_override_cannot_say_is_named_with_the_reason() -> None:
    text = export(Recipe.model_validate(QWEN).replace({"cpu_affinity": "spread"}), "megatron-bridge")
    assert "# NOT EXPRESSED: cpu_affinity: spread (no path in Bridge's configuration)" in text
    assert "# comm_overlap of the Bridge recipe is removed" in text
    assert "48 layers of 2048 (GPT)" in text


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
def test_the_launch_line_gets_every_override_whole() -> None:
    layout = "Et*24|t*24L"
    knobs = {"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": layout}
    text = export(Recipe.model_validate(QWEN).replace(knobs), "megatron-bridge", Context(version="0.3.1"))
    shown = text.replace("./scripts/training/train.sh", "printf '%s\\n'")
    assert BASH is not None
    done = subprocess.run(
        [BASH, "-eu"], input=shown, text=True, capture_output=True, check=True, env={"RECIPE": "qwen"}
    )
    assert f"model.pipeline_model_parallel_layout='{layout}'" in done.stdout.splitlines()


@pytest.mark.skipif(bridge_imports.missing() is not None, reason="Megatron-Bridge is not installed")
def test_bridge_keeps_what_was_written_whatever_its_recipe_says() -> None:
    command = [sys.executable, "-m", "benchmarks.exports_bridge", "--every", "80"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
