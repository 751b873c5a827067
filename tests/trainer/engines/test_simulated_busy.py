"""The sums of a step's operations are what a trace of it shows, without a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzers import analyze
from policies.surrogate.evidence import PARTS
from tests.autotune.outside import SMALL
from trainer.burst import Burst
from trainer.engines.simulated import SimulatedEngine, busy_by_rank
from trainer.recipe.load import recipe_from
from trainer.recipe.machine import Machine, Noise
from trainer.recipe.source import parse_source


def test_sums_of_operations_are_what_the_trace_of_the_step_shows(tmp_path: Path) -> None:
    recipe = recipe_from(parse_source(SMALL, name="small.yaml"))
    machine = Machine(noise=Noise(step=0.0, burst=0.0))
    recipe = recipe.model_copy(update={"burst": recipe.burst.model_copy(update={"machine": machine})})
    burst = Burst(number=1, recipe=recipe, folder=tmp_path / "burst", seed=1)
    assert SimulatedEngine(tmp_path / "engine").run(burst).ok
    step = analyze([burst.folder]).traces[0].steps[-1]
    (added,) = busy_by_rank(recipe, machine)
    for work in ("gemm", "attention", "optimizer"):
        assert added[work] == pytest.approx(PARTS[work](step), rel=0.01), work
    for work in ("grouped", "memory_bound"):
        assert added[work] == pytest.approx(PARTS[work](step), rel=0.1), work
