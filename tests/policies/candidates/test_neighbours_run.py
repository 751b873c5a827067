"""Checks the moves of a recipe without Transformer Engine: none needs it, and all of them run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policies.candidates.neighbours import moves
from tests.conftest import HANG_S
from tests.trainer.engines.gpu_recipes import TINY, on_gpus
from trainer.burst import Burst
from trainer.engines.megatron.engine import MegatronEngine
from trainer.engines.megatron.needs import missing_transformer_engine
from trainer.recipe import Recipe

SHARED: dict[str, Any] = {"moe_shared_expert_intermediate_size": 64}
BASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sharded": {
        "precision": "bf16",
        "expert_model_parallel_size": 2,
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "moe_grouped_gemm": True,
    },
    "tensor parallel": {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "expert_model_parallel_size": 2,
        "expert_tensor_parallel_size": 1,
    },
    "interleaved": {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "overlap_p2p_comm": True,
        "use_distributed_optimizer": True,
    },
}
EP_OVERLAP: dict[str, Any] = {
    "expert_model_parallel_size": 2,
    "moe_grouped_gemm": True,
    "overlap_moe_expert_parallel_comm": True,
}


def free(recipe: Recipe) -> Recipe:
    """Returns the recipe with everything allowed that a user may allow."""
    tune = recipe.tune.model_copy(update={"allow": "numerics-changing", "freeze": ()})
    return recipe.model_copy(update={"tune": tune})


def on_cpus(base: str) -> Recipe:
    recipe = Recipe.model_validate(
        {
            "name": "tiny",
            "model": TINY | SHARED | {"num_layers": 4},
            "cluster": {"gpu": "cpu", "gpus_per_node": 2},
            "training": {"seq_length": 32, "global_batch_size": 4, "precision": "fp32"},
            "burst": {"warmup_steps": 1, "measure_steps": 1, "trace_steps": 0, "deadline_s": HANG_S},
        }
    )
    return free(recipe.replace(BASES[base]))


def local(**knobs: Any) -> Recipe:
    return free(on_gpus({"transformer_impl": "local"} | knobs, gpus=8, **SHARED, num_layers=4))


@pytest.mark.parametrize("base", BASES)
def test_nothing_that_may_be_tried_on_cpu_ranks_needs_transformer_engine(base: str) -> None:
    found = [missing_transformer_engine(move.recipe) for move in moves(on_cpus(base))]
    assert found
    assert set(found) == {None}


@pytest.mark.parametrize("knobs", [*BASES.values(), EP_OVERLAP], ids=[*BASES, "EP overlap"])
def test_nothing_that_may_be_tried_of_local_layers_needs_transformer_engine(knobs: dict[str, Any]) -> None:
    found = [missing_transformer_engine(move.recipe) for move in moves(local(**knobs))]
    assert found
    assert set(found) == {None}


@pytest.mark.megatron
@pytest.mark.thorough
@pytest.mark.usefixtures("light_agent")
def test_everything_that_may_be_tried_on_cpu_ranks_runs(tmp_path: Path) -> None:
    """Runs each change from the first base that it may be tried from, on ranks that all share."""
    engine = MegatronEngine(tmp_path / "engine")
    failed, ran = dict[str, str](), set[str]()
    try:
        for base in ("sharded", "interleaved", "plain"):
            for move in moves(on_cpus(base)):
                # threads: these need ranks of their own, since only the environment of ranks sets them
                if move.dimension != "threads" and str(move.changes) not in ran:
                    ran.add(str(move.changes))
                    folder = tmp_path / str(len(ran))
                    outcome = engine.run(Burst(number=len(ran), recipe=move.recipe, folder=folder))
                    if outcome.failure is not None:
                        failed[f"{base}: {move.changes}"] = outcome.failure.evidence
    finally:
        engine.close()
    assert ran
    assert failed == {}
