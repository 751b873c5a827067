"""Settings that cost nothing: turned on wherever they are legal, and never given up for a burst.

UNTRIED are not turned on before a burst has run: real trainers may refuse them, whatever the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.candidates.effects import gained
from trainer.estimate.plan.space import ALWAYS
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

UNTRIED: tuple[dict[str, object], ...] = ({"nccl_ub": True},)
FREE: tuple[dict[str, object], ...] = (
    {"cpu_affinity": "spread"},
    {"delay_wgrad_compute": True},
    {"moe_shared_expert_overlap": True},
    {"manual_gc": True, "manual_gc_interval": 100},
    {"moe_permute_fusion_into_hybridep": True},
    {"overlap_dispatch_backward_with_experts_wgrad": True},
    *UNTRIED,
)
LEFT_ON: Mapping[str, Any] = ALWAYS | {
    knob: value for changes in FREE for knob, value in changes.items() if KNOBS[knob].domain.kind != "int"
}


def gives_up(incumbent: Recipe, recipe: Recipe) -> bool:
    """Returns true if a recipe on GPUs only turns off settings that cost nothing or have a published gain."""
    left = (
        gained(incumbent, knob) or (knob in LEFT_ON and LEFT_ON[knob] == was)
        for knob, (was, _) in incumbent.diff(recipe).items()
    )
    return not incumbent.hardware.is_cpu and all(left)
