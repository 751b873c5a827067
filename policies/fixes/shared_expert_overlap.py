"""Overlaps the shared expert with dispatch."""

from analyzers.diagnosis import Wall
from policies.changes.fix import EP, Claim, Fix, Page, Proof
from policies.changes.matching import turns_on
from policies.changes.switch import expert_parallel_only, turn_on, unless_on
from policies.situation import Situation
from policies.trial import Phase


def _elsewhere(situation: Situation) -> str | None:
    if not situation.recipe.architecture.moe_shared_expert_intermediate_size:
        return "the model has no shared expert"
    if situation.knob("overlap_moe_expert_parallel_comm"):
        return "EP communication overlap is on and refuses it"
    return expert_parallel_only(situation)


FIX = Fix(
    name="shared_expert_overlap",
    title="shared expert overlap",
    page=Page(
        summary="Shared expert overlapped with dispatch.",
        what="`moe_shared_expert_overlap`: the shared expert computes while tokens are dispatched and combined.",
        shows="EP dispatch exposed in a model with shared experts.",
        costs=(
            "a second stream; the shared expert and the communication share the device. No memory: its activations are "
            "kept in any case."
        ),
        not_when="no shared experts, EP is 1, EP communication overlap is on, or the dispatcher is allgather.",
        source=(
            "Megatron-LM d98e8a64, megatron/core/transformer/moe/README.md; "
            "megatron/core/transformer/transformer_config.py:1825 (needs alltoall or flex)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=EP,
            fraction=0.2,
            source="hides as much as the shared expert computes: one of about nine active experts on DeepSeek-V3",
        ),
    ),
    knobs=("moe_shared_expert_overlap",),
    matches=turns_on("moe_shared_expert_overlap"),
    precondition=unless_on("moe_shared_expert_overlap", _elsewhere),
    changes=turn_on("moe_shared_expert_overlap"),
    chance=0.5,
    proof=Proof(measure="ep_exposed", moves=-1, at_least=0.02),
)
