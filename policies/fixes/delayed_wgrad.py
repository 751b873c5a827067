"""Delays weight gradients, so that dispatch has compute to overlap with."""

from analyzers.diagnosis import Wall
from policies.changes.fix import EP, Claim, Fix, Page
from policies.changes.matching import turns_on
from policies.changes.switch import turn_on, unless_on
from policies.situation import Situation
from policies.trial import Phase


def _without_overlap(situation: Situation) -> str | None:
    if situation.knob("overlap_moe_expert_parallel_comm"):
        return None
    return "EP communication overlap is off"


FIX = Fix(
    name="delayed_wgrad",
    title="delayed weight gradients",
    page=Page(
        summary="Delayed weight gradients: keep compute for the dispatch to overlap with.",
        what="`delay_wgrad_compute`: weight gradients are computed after their layer's communication has started.",
        shows="EP communication overlap is on and some dispatch is still exposed.",
        costs="the inputs of the delayed GEMMs are kept a little longer.",
        not_when="without EP communication overlap; on layers that are not Transformer Engine's.",
        source=(
            "Megatron-Bridge 067f987d, skills/nemo-mbridge-perf-moe-comm-overlap SKILL.md:104 (short A/B: 31.31 to "
            "31.20 s, neutral); arXiv 2603.07685 section 4.2.3 (part of the 93 % on H100)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=EP,
            fraction=0.2,
            source="neutral alone on Qwen3-30B; on DeepSeek-V3 part of what takes overlap to 93 %",
        ),
    ),
    knobs=("delay_wgrad_compute",),
    matches=turns_on("delay_wgrad_compute"),
    precondition=unless_on("delay_wgrad_compute", _without_overlap),
    changes=turn_on("delay_wgrad_compute"),
    chance=0.3,
)
