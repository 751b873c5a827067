"""Drops activations of some modules and recomputes them in backward."""

from policies.changes.fix import Fix, KnobChanges, Page
from policies.changes.matching import more_recompute
from policies.changes.recompute import NONE, heavier
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return None if _changes(situation) else "there is no heavier selective recompute than the recipe has"


def _changes(situation: Situation) -> list[KnobChanges]:
    return [rung for rung in heavier(situation.recipe) if rung["recompute_granularity"] == "selective"]


FIX = Fix(
    name="selective_recompute",
    title="selective recompute",
    page=Page(
        summary="Selective recompute: drop cheap activations of some modules and recompute them in backward.",
        what=(
            "`recompute_granularity=selective` with the lightest set of `recompute_modules` that brings the peak under "
            "the limit: attention first, then `moe_act`, then `layernorm`, the whole `moe` last."
        ),
        shows="out of memory in forward or backward, with activations the largest part of the estimate.",
        costs="2 to 11 % of the step for one to three modules; savings of modules do not add up.",
        not_when=(
            "at that level of recompute already, or full recompute is on (then `drop_recompute` reduces it). Attention "
            "recompute is useless where attention is fused."
        ),
        source=(
            "Megatron-Bridge 067f987d, skills/nemo-mbridge-perf-activation-recompute (Moonlight-16B, matched A/B: "
            "moe_act +2.0 %, layernorm with moe_act +10.8 % step time); arXiv 2603.07685 table 4 (42.4 of 131 GB of "
            "activations)."
        ),
    ),
    phases=(Phase.FIT,),
    fit_order=30,
    knobs=tuple(NONE),
    matches=more_recompute,
    precondition=_precondition,
    changes=_changes,
    slowdown=0.05,
)
