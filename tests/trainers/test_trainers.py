"""Real Megatron-LM and real Megatron-Bridge, unmodified, tuned end to end on two CPU ranks: `make test-trainers`.

From the user's script to the exported one, which is started once. Minutes each; in an environment of their own, with
the packages of `requirements.txt`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT

HERE = Path(__file__).parent
MEGATRON_LM = os.environ.get("MEGATRON_LM")
WORTHWHILE = 1.3
pytestmark = pytest.mark.trainers


def tuner(*words: str, cwd: Path, **env: str) -> None:
    """Runs the program. Its exit code has to be 0."""
    paths = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "autotune.cli", *words],
        cwd=cwd,
        env={**os.environ, **paths, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    (cwd / f"{words[0]}.txt").write_text(done.stdout)  # kept next to the study for inspection
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def megatron_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the training code of core_v0.16.1: the release whose core is installed."""
    if MEGATRON_LM is None:
        pytest.skip("MEGATRON_LM names no checkout of Megatron-LM")
    folder = tmp_path_factory.mktemp("megatron_lm")
    parts = ("megatron", "gpt_builders.py", "model_provider.py", "pretrain_gpt.py", "mamba_builders.py")
    archive = subprocess.run(
        ["git", "-C", MEGATRON_LM, "archive", "core_v0.16.1", *parts], capture_output=True, check=True
    )
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def with_memory(recipe: Path, gib: float) -> None:
    """Writes into the recipe this memory per rank, which the operating system enforces."""
    text = recipe.read_text()
    recipe.write_text(text.replace("cluster:\n", f"cluster:\n  memory_gib: {gib}\n", 1))


def with_short_bursts(recipe: Path) -> None:
    """Writes into the recipe bursts of few steps, and the release whose core is installed."""
    text = recipe.read_text().replace("\ntrainer:\n", "\ntrainer:\n  version: 0.16.1\n")
    few = "\nburst:\n  warmup_steps: 1\n  measure_steps: 4\n  trace_steps: 0\n"
    recipe.write_text(text.replace("\nburst:\n", few))


def report(study: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((study / "report.json").read_text())
    return document


def test_a_launch_script_of_megatron_lm_from_import_to_the_exported_script(megatron_lm: Path, tmp_path: Path) -> None:
    script = HERE / "launch_megatron_lm.sh"
    made = ("-o", "mine.yaml", "--gpu", "cpu", "--set", f"MEGATRON_LM={megatron_lm}")
    tuner("import", str(script), *made, cwd=tmp_path)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(recipe.read_text().replace("trainer:\n", "trainer:\n  version: 0.16.1\n"))
    with_memory(recipe, 0.42)

    tuner("run", "mine.yaml", "--budget", "14", "--study", "night", cwd=tmp_path)

    found = report(tmp_path / "night")
    assert found["trials"][0]["status"] == "oom"
    runs = [trial for trial in found["trials"] if trial["status"] == "ok"]
    assert found["speedup"] >= WORTHWHILE
    assert all(trial["diagnosis"] for trial in runs)
    traced = [each for trial in runs for each in trial["diagnosis"]["walls"]]
    assert traced
    assert runs[-1]["outcome"]["peak_gib"][1] > 0

    exported = tmp_path / "tuned.sh"
    tuner("export", "night", "--to", "megatron-lm", "-o", str(exported), cwd=tmp_path)
    last = ("--exit-interval", "2", "--log-interval", "1", "--eval-iters", "0")
    assert iterations(["bash", str(exported), *last], tmp_path) == 2


def test_the_setting_that_makes_a_launch_script_of_megatron_lm_slower_is_named(
    megatron_lm: Path, tmp_path: Path
) -> None:
    shutil.copy(HERE / "pretrain_gpt_on_cpu.py", tmp_path)
    text = (HERE / "launch_megatron_lm.sh").read_text()
    text = text.replace("GPUS_PER_NODE=2", f"GPUS_PER_NODE=2\nMEGATRON_LM={megatron_lm}")
    inert = "export NCCL_DEBUG=WARN CUDA_CACHE_DISABLE=1\ntorchrun"
    scripts = {
        "fast": text.replace("--micro-batch-size 1", "--micro-batch-size 8"),
        "slow": text.replace("\ntorchrun", f"\n{inert}").replace("--clip-grad 1.0", "--clip-grad 1.0 --log-throughput"),
    }
    for name, script in scripts.items():
        (tmp_path / f"{name}.sh").write_text(script)
        tuner("import", f"{name}.sh", "-o", f"{name}.yaml", "--gpu", "cpu", cwd=tmp_path)
        with_short_bursts(tmp_path / f"{name}.yaml")

    tuner("bisect", "fast.yaml", "slow.yaml", "--budget", "14", "--study", "slower", cwd=tmp_path)

    found = report(tmp_path / "slower")
    assert found["answered"] == "culprits"
    assert [each["differences"] for each in found["culprits"]] == [["micro_batch_size"]]
    assert len(found["differences"]) == 4


def test_a_launch_script_of_megatron_bridge_from_import_to_the_exported_script(tmp_path: Path) -> None:
    if find_spec("megatron.bridge") is None:
        pytest.skip("Megatron-Bridge is not installed")
    tuner("import", str(HERE / "launch_bridge.sh"), "-o", "mine.yaml", "--gpu", "cpu", cwd=tmp_path)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(recipe.read_text().replace("trainer:\n", "trainer:\n  version: 0.3.1\n"))

    tuner("run", "mine.yaml", "--budget", "10", "--study", "night", cwd=tmp_path)

    found = report(tmp_path / "night")
    assert found["speedup"] >= WORTHWHILE
    assert all(trial["diagnosis"] for trial in found["trials"] if trial["status"] == "ok")

    exported = tmp_path / "tuned.sh"
    tuner("export", "night", "--to", "megatron-bridge", "-o", str(exported), cwd=tmp_path)
    last = ("train.exit_interval=2", "logger.log_interval=1")
    assert iterations(["bash", str(exported), *last], tmp_path) == 2


def iterations(command: list[str], cwd: Path) -> int:
    """Returns how many iterations an exported script trains."""
    paths = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env = {**os.environ, **paths, "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    return len(re.findall(r"iteration +\d+/ +\d+ \|", said))
