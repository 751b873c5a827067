"""Checks that every model with a published configuration in the tests can be started, checked, estimated and tuned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import main
from tests.draws import few
from tests.places import ROOT
from tests.rows import for_every_row
from trainer.burst import Burst
from trainer.engines.simulated import SimulatedEngine
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe.load import recipe_from
from trainer.recipe.rules.check import errors_of
from trainer.recipe.source import Source

MODELS = tuple(json.loads((ROOT / "tests" / "trainer" / "recipe" / "published_configs.json").read_text()))
FIRST, FEW = "jamba-v0.1", "16"  # a model that fits on few GPUs, and their number
# one of each mixer, and of attention that differs from the usual
UNLIKE = ("nemotron-3-super-120b-a12b", "qwen3.5-35b-a3b", "deepseek-v3.2", "minimax-text-01", "deepseek-v4-flash")
KNOBS = {"use_distributed_optimizer": True, "moe_grouped_gemm": True, "moe_router_dtype": "fp32"}


@for_every_row(MODELS)
def test_a_layout_is_legal_estimated_and_simulated_alike(model: str, tmp_path: Path) -> None:
    data = {
        "name": model,
        "model": model,
        "cluster": {"gpu": "gb300", "nodes": 64, "gpus_per_node": 4},
        # with fewer micro batches half of the step is the host's fixed time, for which the two estimates differ twofold
        "training": {"global_batch_size": 1024},
        "parallelism": {"ep": 8, "pp": 1},
        "knobs": KNOBS,
        "burst": {"engine": "simulated", "warmup_steps": 0, "measure_steps": 1, "trace_steps": 0},
    }
    recipe = recipe_from(Source(name=model, data=data))
    time, memory = estimate_time(recipe), estimate_memory(recipe)
    outcome = SimulatedEngine(tmp_path).run(Burst(number=1, recipe=recipe, folder=tmp_path / model))
    assert errors_of(recipe) == []
    if memory.upper_gib < 270:
        assert outcome.step_us[0] / 1e6 == pytest.approx(time.step_s, rel=0.5)
        assert max(outcome.peak_gib) == pytest.approx(memory.peak_gib, rel=0.15)


@pytest.mark.parametrize("engine", ["megatron", "command"])
def test_gated_delta_net_is_legal_for_engines_that_train(engine: str) -> None:
    for model in ("qwen3-next-80b-a3b", "qwen3.5-35b-a3b"):
        data = {
            "name": model,
            "model": model,
            "cluster": {"gpu": "h100", "nodes": 8},
            "parallelism": {"ep": 8},
            "knobs": KNOBS,
            "burst": {"engine": engine},
            "trainer": {"kind": "megatron-lm", "command": ["pretrain_gpt.py"]} if engine == "command" else None,
        }
        assert errors_of(recipe_from(Source(name=model, data=data))) == []


def started(model: str) -> Path:
    """Returns the recipe that `init` writes for the model, with engine `simulated`."""
    starter, gpus = Path(f"{model}.yaml"), FEW if model == FIRST else "256"
    assert main(["init", "--model", model, "--gpu", "gb300", "--gpus", gpus, "-o", str(starter)]) == 0
    starter.write_text(starter.read_text().replace("engine: megatron", "engine: simulated"))
    return starter


@pytest.mark.thorough
@pytest.mark.usefixtures("empty_folder")
@for_every_row([model for model in MODELS if model not in (FIRST, *UNLIKE)])
def test_what_init_writes_is_legal(model: str) -> None:
    assert main(["check", str(started(model))]) == 0


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("model", few((FIRST, *UNLIKE), 1))
def test_what_init_writes_passes_every_command(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    starter = started(model)
    assert main(["check", str(starter)]) == 0
    assert main(["estimate", str(starter)]) == 0
    assert main(["plan", str(starter), "--top", "1"]) == 0
    assert main(["run", str(starter), "--budget", "1"]) == 0
    assert "best: trial 0" in capsys.readouterr().out
