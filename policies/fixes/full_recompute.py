"""Keeps only each layer's input and recomputes the layer in backward."""

from policies.changes.fix import Fix, KnobChanges, Page
from policies.changes.matching import all_of, becomes, more_recompute
from policies.changes.recompute import FULL, NONE
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return "full recompute is on" if situation.knob("recompute_granularity") == "full" else None


def _changes(situation: Situation) -> list[KnobChanges]:
    without_overlap = {"overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": False}
    return [FULL, FULL | without_overlap]


FIX = Fix(
    name="full_recompute",
    title="full recompute",
    page=Page(
        summary="Full recompute: keep only each layer's input and recompute the layer in backward.",
        what="`recompute_granularity=full`, uniform, one layer at a time.",
        shows="out of memory that selective recompute and smaller micro batches do not fix.",
        costs="about a third more compute, and every EP dispatch of the forward runs a second time.",
        not_when="full recompute is on already; EP communication overlap and TE-scoped CUDA graphs refuse it.",
        source=(
            "arXiv 2603.07685 section 4.1.4 (about 33 % compute, re-triggers the EP all-to-all); Megatron-Bridge "
            "067f987d, docs/performance-guide.md:317 (about 30 %)."
        ),
    ),
    phases=(Phase.FIT,),
    fit_order=70,
    knobs=tuple(NONE),
    matches=all_of(more_recompute, becomes("recompute_granularity", lambda value: value == "full")),
    precondition=_precondition,
    changes=_changes,
    slowdown=0.33,
)
