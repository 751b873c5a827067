"""Uses ranks of tensor parallelism for data parallelism instead."""

from analyzers.diagnosis import Wall
from policies.changes.degrees import DEGREES, smaller, with_tp
from policies.changes.fix import LAUNCHES, TP, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import shrinks
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return "TP is 1" if situation.knob("tensor_model_parallel_size") == 1 else None


def _changes(situation: Situation) -> list[KnobChanges]:
    recipe = situation.recipe
    return [change for size in smaller(recipe, "tp") for change in with_tp(recipe, size)]


FIX = Fix(
    name="less_tensor_parallel",
    title="less tensor parallelism",
    page=Page(
        summary="Less tensor parallelism: give its ranks back to data parallelism.",
        what="the smallest `tensor_model_parallel_size` that is predicted to fit.",
        shows="exposed TP communication, small kernels, memory to spare.",
        costs="weights and activations grow by the factor TP shrinks.",
        not_when="TP is 1, or the larger weights do not fit.",
        source=(
            "arXiv 2603.07685 section 9.1 (least model parallelism, most data parallelism) and table 5 (Qwen3-235B, "
            "TP2 to TP1 with EP64: 800 to 920 TFLOP/s)."
        ),
    ),
    phases=(Phase.SCALE, Phase.PROFILE),
    claims=(
        Claim(wall=Wall.COMMUNICATION, parts=TP, fraction=1.0, source="no TP, no TP collectives"),
        Claim(wall=Wall.HOST, parts=LAUNCHES, fraction=0.4, source="fewer, larger kernels"),
        Claim(wall=Wall.COMPUTE, fraction=0.2, source="matrices keep their full width"),
    ),
    knobs=(DEGREES["tp"],),
    matches=shrinks(DEGREES["tp"]),
    precondition=_precondition,
    changes=_changes,
    chance=0.7,
    proof=Proof(measure="tp_busy", moves=-1),
)
