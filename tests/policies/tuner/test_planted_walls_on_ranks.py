"""The tuner against walls planted on real CPU ranks of Megatron-Core: layouts frozen, no measured time asserted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policies.trial import PHASES
from tests.conftest import HANG_S
from tests.policies.drawn import tuned_by
from tests.policies.tuned import Run
from tests.policies.tuner.planted_walls import LAYOUT, first_fixes
from trainer.engines.megatron.engine import MegatronEngine
from trainer.recipe import load_recipe
from trainer.recipe.rules.examples import FULL

BURST = {"engine": "megatron", "warmup_steps": 1, "measure_steps": 3, "trace_steps": 1, "deadline_s": HANG_S}
# knobs of the packaged CPU recipe -> the fixes that answer them
PLANTED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "memory: everything is recomputed with room": (FULL, {"drop_recompute"}),
    "host: garbage is collected before each step": (
        {"manual_gc": True, "manual_gc_interval": 1, "micro_batch_size": 1, "seq_length": 32},
        {"manual_gc", "micro_batch_up", "manual_gc_interval"},
    ),
}


@pytest.mark.megatron
@pytest.mark.cold
@pytest.mark.thorough
@pytest.mark.parametrize(("knobs", "fixes"), PLANTED.values(), ids=PLANTED.keys())
def test_a_wall_planted_on_real_ranks_gets_its_fix_in_the_first_two_proposals(
    knobs: dict[str, Any], fixes: set[str], tmp_path: Path
) -> None:
    base = load_recipe("cpu-moe").replace(knobs)
    base = tuned_by(base, freeze=tuple(dict.fromkeys((*base.tune.freeze, *LAYOUT))))
    base = base.model_copy(update={"burst": base.burst.model_copy(update=BURST)})
    engine = MegatronEngine(tmp_path / "engine")
    try:
        run = Run(base, tmp_path, engine=engine)
        found = first_fixes(run)
    finally:
        engine.close()
    assert fixes & set(found), found
    assert all(trial.proposal.phase in PHASES for trial in run.trials)
