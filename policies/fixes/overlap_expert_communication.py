"""Dispatches one micro batch while another one computes."""

from analyzers.diagnosis import Wall
from policies.changes.fix import EP, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import turns_on
from policies.changes.recompute import lighter_with_room
from policies.changes.switch import expert_parallel_only, unless_on
from policies.situation import Situation
from policies.trial import Phase


def _changes(situation: Situation) -> list[KnobChanges]:
    # With one connection the streams serialise: +3.7 % against +7.8 % (Megatron-LM#6311, 64 H100)
    overlap: KnobChanges = {"overlap_moe_expert_parallel_comm": True, "CUDA_DEVICE_MAX_CONNECTIONS": 32}
    if situation.knob("moe_shared_expert_overlap"):
        overlap["moe_shared_expert_overlap"] = False
    # Full and whole-`moe` recompute refuse it; the rules pick what is left of the lighter levels
    return [overlap, *(overlap | lighter for lighter in lighter_with_room(situation.recipe))]


FIX = Fix(
    name="overlap_expert_communication",
    title="EP communication overlap",
    page=Page(
        summary="EP communication overlap: one micro batch dispatches while another one computes.",
        what=(
            "`overlap_moe_expert_parallel_comm` (1F1B with the all-to-all of one micro batch under the other's "
            "attention and GEMMs)."
        ),
        shows="EP dispatch and combine exposed for a large share of the step.",
        costs=(
            "buffers of a second micro batch in flight, more scheduling on the host; net negative where the domain is "
            "fast (GB200)."
        ),
        not_when=(
            "EP is 1, full or whole-`moe` recompute, shared-expert overlap, allgather dispatcher, PP without VPP, "
            "fp32. It cannot run on CPUs."
        ),
        source=(
            "Megatron-Bridge 067f987d, skills/nemo-mbridge-perf-moe-comm-overlap card.yaml:41 (Qwen3-30B on 16 H100, "
            "matched A/B: 244 to 287 TFLOP/s, +17.7 %); arXiv 2603.07685 section 4.2.3 (93 % of EP communication "
            "hidden on H100)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=EP,
            fraction=0.6,
            source="37 % (Qwen3-30B, 16 H100) to 93 % (DeepSeek-V3, H100) of EP communication hidden",
        ),
    ),
    knobs=("overlap_moe_expert_parallel_comm",),
    matches=turns_on("overlap_moe_expert_parallel_comm"),
    precondition=unless_on("overlap_moe_expert_parallel_comm", expert_parallel_only),
    changes=_changes,
    chance=0.8,
    proof=Proof(measure="ep_exposed", moves=-1),
)
