"""Computes linear layers in FP8."""

from analyzers.diagnosis import Wall
from policies.changes.fix import Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import becomes
from policies.changes.switch import gpu_only
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    precision = situation.knob("precision")
    return f"precision is {precision}" if precision != "bf16" else gpu_only(situation)


def _changes(situation: Situation) -> list[KnobChanges]:
    hardware = situation.recipe.hardware
    tried = dict.fromkeys((*hardware.plan_precisions[:1], "fp8_current"))
    return [{"precision": precision} for precision in tried if hardware.runs(precision)]


FIX = Fix(
    name="fp8",
    title="FP8 linear layers",
    page=Page(
        summary="FP8 linear layers.",
        what="`precision` from bf16 to the FP8 recipe that suits the GPU: blockwise on Hopper, MXFP8 on Blackwell.",
        shows="compute is the wall: the device is busy with GEMMs near their bf16 rate.",
        costs=(
            "numerics change (the loss curve is compared); quantization kernels and more host work. It saves 16 of 200 "
            "GB on DeepSeek-V3, in activations."
        ),
        not_when="on CPUs, when precision is not bf16, and unless the recipe allows numerics-changing knobs.",
        source=(
            "Megatron-MoE-ModelZoo e8650517, best_practice/mixtral/run_mixtral_8x22B.sh:33 (Mixtral-8x22B H100: 465 to "
            "560 TFLOP/s, +20.4 %); arXiv 2603.07685 section 4.3.5 (10 to 25 % end to end)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(Claim(wall=Wall.COMPUTE, fraction=0.4, source="10 to 25 % of the step where GEMMs are half of it"),),
    knobs=("precision",),
    matches=becomes("precision", lambda value: value.startswith(("fp8", "mxfp8"))),
    precondition=_precondition,
    changes=_changes,
    chance=0.8,
    proof=Proof(measure="compute", moves=-1, at_least=0.02),
)
