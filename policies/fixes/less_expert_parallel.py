"""Spreads dispatch over fewer ranks."""

from analyzers.diagnosis import Wall
from policies.changes.degrees import DEGREES, smaller, with_ep
from policies.changes.fix import EP, LOAD, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import shrinks
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return "EP is 1" if situation.knob("expert_model_parallel_size") == 1 else None


def _changes(situation: Situation) -> list[KnobChanges]:
    recipe = situation.recipe
    return [change for size in reversed(smaller(recipe, "ep")) for change in with_ep(recipe, size)]


FIX = Fix(
    name="less_expert_parallel",
    title="less expert parallelism",
    page=Page(
        summary="Less expert parallelism: keep dispatch inside fewer ranks.",
        what="the next smaller `expert_model_parallel_size`; at 1 there is no dispatch at all.",
        shows="EP dispatch and combine exposed in the trace; ranks waiting for the one with the most expert work.",
        costs=(
            "more experts per rank, so weights, gradients and optimizer state grow; expert gradients are reduced over "
            "more replicas."
        ),
        not_when="EP is 1, or the experts of a rank do not fit.",
        source=(
            "arXiv 2603.07685 section 9.1 (EP x TP inside the fast domain); inter-node bandwidth is 5 to 10 times "
            "below NVLink (section 3.2.4)."
        ),
    ),
    phases=(Phase.PROFILE,),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=EP,
            fraction=0.7,
            source="volume grows as (EP-1)/EP and is 5 to 10 times slower between nodes (arXiv 2603.07685)",
        ),
        Claim(
            wall=Wall.COMMUNICATION,
            parts=LOAD,
            fraction=0.3,
            source="a rank with more experts is nearer to the mean: n experts' loads vary as 1/sqrt(n)",
        ),
    ),
    knobs=(DEGREES["ep"],),
    matches=shrinks(DEGREES["ep"]),
    precondition=_precondition,
    changes=_changes,
    chance=0.5,
    proof=Proof(measure="ep_busy", moves=-1),
)
