"""The tuner against walls planted on real CPU ranks of Megatron-Core: layouts frozen, no measured time asserted.

Communication has no scene: with the layout frozen, nothing that two ranks of one machine exchange costs enough. The
host wall has one on two nodes: tests/benchmarks/test_real_walls.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policies.trial import PHASES
from tests.conftest import HANG_S
from tests.policies.drawn import tuned_by
from tests.policies.tuned import Run
from tests.policies.tuner.planted_walls import LAYOUT, first_proposals, largest
from trainer.engines.megatron.engine import MegatronEngine
from trainer.recipe import load_recipe
from trainer.recipe.rules.examples import FULL

BURST = {"engine": "megatron", "warmup_steps": 1, "measure_steps": 3, "trace_steps": 1, "deadline_s": HANG_S}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Knobs of the packaged CPU recipe that plant one wall, and the fixes that answer it."""

    knobs: Mapping[str, Any]
    fixes: frozenset[str]
    ranks: int = 2


PLANTED = {
    "memory: everything is recomputed with room": Scene(
        knobs=FULL | {"micro_batch_size": 4}, fixes=frozenset({"drop_recompute"})
    ),
    "compute: one thread on two cores": Scene(
        knobs={"threads_per_rank": 1, "micro_batch_size": 8, "expert_model_parallel_size": 1},
        fixes=frozenset({"threads"}),
        ranks=1,
    ),
}


@pytest.mark.megatron
@pytest.mark.cold
@pytest.mark.usefixtures("light_agent")
@pytest.mark.thorough
@pytest.mark.parametrize("scene", PLANTED.values(), ids=PLANTED.keys())
def test_a_wall_planted_on_real_ranks_gets_its_fix_in_the_first_two_proposals(scene: Scene, tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    base = load_recipe("cpu-moe")
    base = base.model_copy(update={"cluster": base.cluster.model_copy(update={"gpus_per_node": scene.ranks})})
    base = base.replace(dict(scene.knobs))
    base = tuned_by(base, freeze=tuple(dict.fromkeys((*base.tune.freeze, *LAYOUT))))
    base = base.model_copy(update={"burst": base.burst.model_copy(update=BURST)})
    engine = MegatronEngine(tmp_path / "engine")
    try:
        run = Run(base, tmp_path, engine=engine)
        found = first_proposals(run, scene.fixes)
    finally:
        engine.close()
    assert scene.fixes & set(map(largest, found)), found
    assert all(proposal.phase in PHASES for proposal in found)
