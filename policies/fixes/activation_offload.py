"""Copies chosen activations to host memory until backward."""

from policies.changes.fix import Fix, KnobChanges, Page
from policies.changes.matching import turns_on
from policies.changes.switch import gpu_only, unless_on
from policies.situation import Situation
from policies.trial import Phase


def _changes(situation: Situation) -> list[KnobChanges]:
    modules = ("expert_fc1", "moe_act") if situation.is_moe else ("core_attn",)
    return [{"fine_grained_activation_offloading": True, "offload_modules": modules}]


FIX = Fix(
    name="activation_offload",
    title="activations in host memory",
    page=Page(
        summary="Activation offload: copy chosen activations to host memory until backward.",
        what="`fine_grained_activation_offloading` with the `offload_modules` that are large and used late.",
        shows="out of memory with activations the largest part after recompute and sharding.",
        costs="1.6 to 2 % where the host link is fast; exposed copies where it is not. It saves 10 to 18 % of memory.",
        not_when="on CPUs; full recompute keeps nothing to offload; it is on.",
        source="arXiv 2603.07685 section 4.1.5 and table 5 (DeepSeek-V3: 169 to 151 GB, 945 to 930 TFLOP/s).",
    ),
    phases=(Phase.FIT,),
    fit_order=110,
    last_resort=True,
    knobs=("fine_grained_activation_offloading",),
    matches=turns_on("fine_grained_activation_offloading"),
    precondition=unless_on("fine_grained_activation_offloading", gpu_only),
    changes=_changes,
    slowdown=0.02,
)
