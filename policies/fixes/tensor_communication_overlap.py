"""Overlaps TP communication with the GEMMs around it."""

from analyzers.diagnosis import Wall
from policies.changes.fix import TP, Claim, Fix, Page, Proof
from policies.changes.matching import turns_on
from policies.changes.switch import gpu_only, turn_on, unless_on
from policies.situation import Situation
from policies.trial import Phase


def _elsewhere(situation: Situation) -> str | None:
    return "TP is 1" if situation.knob("tensor_model_parallel_size") == 1 else gpu_only(situation)


FIX = Fix(
    name="tensor_communication_overlap",
    title="TP communication overlap",
    page=Page(
        summary="TP communication overlap.",
        what="`tp_comm_overlap`: Transformer Engine's user buffers split the collectives around each GEMM.",
        shows="TP all-gather and reduce-scatter exposed.",
        costs="user buffers, some SMs.",
        not_when="TP is 1, no sequence parallel, no Transformer Engine; it is on.",
        source=(
            "arXiv 2603.07685 section 9.1 (TP exposed: tp-comm-overlap); megatron/training/arguments.py:1442 (needs "
            "SP)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(wall=Wall.COMMUNICATION, parts=TP, fraction=0.5, source="collectives around GEMMs hide, others do not"),
    ),
    knobs=("tp_comm_overlap",),
    matches=turns_on("tp_comm_overlap"),
    precondition=unless_on("tp_comm_overlap", _elsewhere),
    changes=turn_on("tp_comm_overlap", sequence_parallel=True),
    chance=0.5,
    proof=Proof(measure="tp_exposed", moves=-1),
)
