"""Overlaps gradient reduction with backward."""

from analyzers.diagnosis import Wall
from policies.changes.fix import DP, Claim, Fix, Page, Proof
from policies.changes.matching import turns_on
from policies.changes.switch import turn_on, unless_on
from policies.trial import Phase

FIX = Fix(
    name="overlap_grad_reduce",
    title="gradient reduction overlap",
    page=Page(
        summary="Gradient reduction overlapped with backward.",
        what="`overlap_grad_reduce`: buckets of gradients are reduced while backward still computes.",
        shows="DP reduce-scatter or all-reduce exposed at the end of the step.",
        costs="nothing in memory, the gradient buffers are there already; the last bucket stays exposed.",
        not_when="one data-parallel replica, or it is on.",
        source=(
            "arXiv 2603.07685 section 9.1 (first fix for exposed DP); Megatron-Bridge 067f987d, "
            "skills/nemo-mbridge-perf-moe-optimization-workflow."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=DP,
            fraction=0.5,
            source="the reduction is half of DP's volume; all but the last bucket hides under backward",
        ),
    ),
    knobs=("overlap_grad_reduce",),
    matches=turns_on("overlap_grad_reduce"),
    precondition=unless_on("overlap_grad_reduce"),
    changes=turn_on("overlap_grad_reduce"),
    chance=0.7,
    proof=Proof(measure="dp_exposed", moves=-1),
)
