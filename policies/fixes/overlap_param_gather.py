"""Overlaps parameter gathering with forward."""

from analyzers.diagnosis import Wall
from policies.changes.fix import DP, Claim, Fix, Page, Proof
from policies.changes.matching import turns_on
from policies.changes.switch import turn_on, unless_on
from policies.situation import Situation
from policies.trial import Phase


def _without_sharding(situation: Situation) -> str | None:
    return None if situation.knob("use_distributed_optimizer") else "the optimizer is not distributed"


FIX = Fix(
    name="overlap_param_gather",
    title="parameter gathering overlap",
    page=Page(
        summary="Parameter gathering overlapped with forward.",
        what=(
            "`overlap_param_gather`: with the distributed optimizer, parameters are gathered bucket by bucket as the "
            "next forward needs them."
        ),
        shows="DP all-gather exposed at the start of the step.",
        costs="almost nothing in memory: buckets are views of the parameter buffer.",
        not_when="no distributed optimizer, or it is on. Megatron-Core requires `overlap_grad_reduce` with it.",
        source=(
            "arXiv 2603.07685 section 9.1; megatron/core/distributed (overlap_param_gather needs the distributed "
            "optimizer and overlap_grad_reduce)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=DP,
            fraction=0.9,
            source="it includes the gradient overlap: only the first and last bucket stay exposed",
        ),
    ),
    knobs=("overlap_param_gather",),
    matches=turns_on("overlap_param_gather"),
    precondition=unless_on("overlap_param_gather", _without_sharding),
    changes=turn_on("overlap_param_gather", overlap_grad_reduce=True),
    chance=0.7,
    proof=Proof(measure="dp_exposed", moves=-1),
)
