"""Checks what may be exported: legal recipes of a file, a study's best or one trial; others with --force, marked."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.export import targets
from autotune.export.target import Provenance
from autotune.tuning.journal import read_study
from tests.rows import filled
from trainer.recipe import load_recipe

RECIPE = """\
name: sim
model: qwen3-30b-a3b
cluster: {gpu: h100, nodes: 2, gpus_per_node: 8}
training: {seq_length: 2048, global_batch_size: %s}
parallelism: {tp: %s, ep: 8, etp: 1}
knobs: {use_distributed_optimizer: true, sequence_parallel: true%s}
burst: {engine: simulated, warmup_steps: 1, measure_steps: 5, trace_steps: 1}
"""
ILLEGAL = RECIPE % (50, 1, "")
REFUSED_BY_MEGATRON_LM = RECIPE % (64, 2, ", CUDA_DEVICE_MAX_CONNECTIONS: 8")
LEFT_OPEN = RECIPE % (64, 2, "")


pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def study(ended: Path) -> Path:
    """Returns a copy of the study that a test may change."""
    return Path(shutil.copytree(ended / "studies/sim-1", "study"))


@pytest.mark.parametrize("target", targets())
def test_an_illegal_recipe_is_refused_and_written_with_force_under_what_it_breaks(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.yaml").write_text(ILLEGAL)
    assert main(["export", "bad.yaml", "--to", target, "-o", "out"]) == 2
    said = capsys.readouterr().err
    assert "[batch-divides]" in said
    assert "--force exports this one" in said
    assert not Path("out").exists()
    assert main(["export", "bad.yaml", "--to", target, "-o", "out", "--force"]) == 0
    head = Path("out").read_text().partition("set -euo")[0].splitlines()[:20]
    assert any(line.startswith("# NOT LEGAL: ") and "[batch-divides]" in line for line in head)


def test_what_one_framework_refuses_is_refused_to_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Sets CUDA_DEVICE_MAX_CONNECTIONS with TP on Hopper: Megatron-LM accepts only 1."""
    Path("r.yaml").write_text(REFUSED_BY_MEGATRON_LM)
    assert main(["export", "r.yaml", "--to", "megatron-lm"]) == 2
    assert "[hopper-connections]" in capsys.readouterr().err
    assert main(["check", "r.yaml", "--for", "megatron-lm"]) == 1
    assert main(["export", "r.yaml", "--to", "megatron-bridge"]) == 0


@pytest.mark.parametrize("target", ["megatron-lm", "slurm", "pytorchjob"])
@pytest.mark.parametrize("version", ["0.16.1", "head"])
def test_one_device_connection_is_exported_where_megatron_lm_demands_it(
    target: str, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r.yaml").write_text(LEFT_OPEN)
    assert main(["export", "r.yaml", "--to", target, "--for", version]) == 0
    text = capsys.readouterr().out
    if target == "pytorchjob":
        assert 'name: CUDA_DEVICE_MAX_CONNECTIONS\n              value: "1"' in text
    else:
        assert "\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n" in text


def test_a_command_of_the_users_is_checked_as_megatron_lm_checks_it() -> None:
    trainer = "trainer: {kind: megatron-lm, command: [python, pretrain_gpt.py]}\n"
    for text, code in ((REFUSED_BY_MEGATRON_LM, 1), (LEFT_OPEN, 0)):
        Path("r.yaml").write_text(text.replace("engine: simulated", "engine: command") + trainer)
        assert main(["check", "r.yaml"]) == code


def test_the_gain_says_what_it_is_counted_from() -> None:
    provenance = Provenance(source="s", study="night", trial=3, speedup=1.34)
    assert "1.34x the throughput of its base" in next(provenance.lines())
    assert "of the recipe nearest to its base that runs" in next(replace(provenance, base_runs=False).lines())
    with_interval = next(replace(provenance, speedup_ci=(1.1, 1.63)).lines())
    assert "1.34x the throughput of its base (95 % interval 1.10 to 1.63)." in with_interval


def test_a_trial_of_a_study_is_exported_by_its_number(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for number, trial in filled(read_study(study).attempted.items()):
        assert main(["export", f"study/{number}", "--to", "yaml", "--force"]) == 0
        text = capsys.readouterr().out
        assert f"# From study sim, trial {number}" in text
        Path("trial.yaml").write_text(text)
        assert load_recipe("trial.yaml") == trial.recipe


def test_an_absent_trial_is_said_and_a_study_is_no_place_to_write(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "study/77", "--to", "yaml"]) == 2
    assert "the study has no trial 77" in capsys.readouterr().err
    assert main(["export", "study/0", "--to", "yaml", "-o", "study/journal.jsonl", "--force"]) == 2
    assert "this command reads it" in capsys.readouterr().err


def test_a_trial_that_did_not_run_is_exported_with_force_only(
    infeasible: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = str(infeasible / "studies/sim-1/0")
    assert main(["export", first, "--to", "yaml"]) == 2
    assert "trial 0 did not run: oom in" in capfd.readouterr().err
    assert main(["export", first, "--to", "yaml", "--force", "--json"]) == 0
    (warning,) = json.loads(capfd.readouterr().out)["warnings"]
    assert warning.startswith("DID NOT RUN: trial 0 did not run")
