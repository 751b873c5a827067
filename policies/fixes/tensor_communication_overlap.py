"""TP communication overlap.

*What it is*: `tp_comm_overlap`: Transformer Engine's user buffers split the collectives around each GEMM.

*How it shows*: TP all-gather and reduce-scatter exposed.

*What it costs*: user buffers, some SMs.

*When it does not apply*: TP is 1, no sequence parallel, no Transformer Engine; it is on.

*Source*: arXiv 2603.07685 section 9.1 (TP exposed: tp-comm-overlap); megatron/training/arguments.py:1442
(needs SP).
"""

from analyzers.diagnosis import Wall
from policies.fix import TP, Claim, Fix, MemoryEffect, Proof
from policies.situation import Situation
from policies.switch import gpu_only, turn_on, unless_on
from policies.trial import Phase


def _elsewhere(situation: Situation) -> str | None:
    return "TP is 1" if situation.knob("tensor_model_parallel_size") == 1 else gpu_only(situation)


FIX = Fix(
    name="tensor_communication_overlap",
    title="TP communication overlap",
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(wall=Wall.COMMUNICATION, parts=TP, fraction=0.5, source="collectives around GEMMs hide, others do not"),
    ),
    precondition=unless_on("tp_comm_overlap", _elsewhere),
    changes=turn_on("tp_comm_overlap", sequence_parallel=True),
    memory=MemoryEffect(fraction=0.02, note="user buffers"),
    chance=0.5,
    proof=Proof(measure="tp_exposed", moves=-1),
)
