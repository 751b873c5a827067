"""What every row of a plan's space takes along: what a plan does not vary stands as in the best.

A step to another layout must not give back what single settings have won, and what costs nothing is not worth a burst
of its own. On GPUs `prospects.FREE` is taken along, and what evens out the experts' load, which it does in every
layout; of the environment only what is tried by itself, the rest goes with the layout. Where another layout refuses a
setting, it goes without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from policies.belief.belief import Belief
from policies.legality import derive
from policies.prospects import FREE
from trainer.estimate.candidates import tabulate
from trainer.estimate.plan.search import Search
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

EVENING = ("moe_expert_capacity_factor", "moe_router_load_balancing_type")
RARELY: dict[str, Any] = {"manual_gc": True, "manual_gc_interval": 100}


def carrying(found: Search, given: Recipe, best: Recipe, belief: Belief, *, least: float) -> Search:
    """The space of the recipe as given, from the best; on CPUs garbage is collected rarely where that is believed to
    bring `least` (log throughput)."""
    table, on_cpu = found.finals.candidates, given.hardware.is_cpu
    moved = {knob: to for knob, (_, to) in given.diff(best).items() if knob not in table.columns}
    kept = moved if on_cpu else {knob: to for knob, to in moved.items() if knob in EVENING or _won_alone(knob)}
    changes = kept | (RARELY if on_cpu and _pays(best, belief, least) else {})
    if not changes:
        return found
    carried = replace(table, base=table.base.replace(changes))
    return replace(found, finals=replace(found.finals, candidates=carried))


def _won_alone(knob: str) -> bool:
    return bool(KNOBS[knob].tries) and not any(knob in changes for changes in FREE)


def _pays(best: Recipe, belief: Belief, least: float) -> bool:
    rarely = derive(best, RARELY)
    if not isinstance(rarely, Recipe):
        return False
    now, then = belief.time.means(tabulate([best, rarely]))
    return bool(now - then >= least)
