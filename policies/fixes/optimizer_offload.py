"""Keeps part of the optimizer state in host memory and steps it there."""

from policies.changes.fix import Fix, KnobChanges, Page
from policies.changes.matching import turns_on
from policies.changes.switch import gpu_only, unless_on
from policies.situation import Situation
from policies.trial import Phase


def _changes(situation: Situation) -> list[KnobChanges]:
    # The offloaded optimizer is Megatron's hybrid one: it needs precision-aware state
    return [
        {
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": fraction,
            "use_precision_aware_optimizer": True,
            "overlap_cpu_optimizer_d2h_h2d": True,
        }
        for fraction in (0.25, 0.5, 0.75, 1.0)
    ]


FIX = Fix(
    name="optimizer_offload",
    title="optimizer state in host memory",
    page=Page(
        summary="Optimizer offload: keep part of the optimizer state in host memory and step it there.",
        what="`optimizer_cpu_offload` with `optimizer_offload_fraction`, the smallest part that is predicted to fit.",
        shows="out of memory with optimizer state the largest part after everything else was tried.",
        costs=(
            "1.9 times the step at 25 %, 4.2 times at 100 % (Qwen3-30B on H100): the last resort. It saves 3.8 to 15.2 "
            "of 47 GB there."
        ),
        not_when="on CPUs, where host memory is the memory; it is on.",
        source=(
            "Megatron-Bridge 067f987d, skills/nemo-mbridge-perf-cpu-offloading card.yaml:131-158 (matched A/B: 996 ms "
            "to 1871, 2484, 3187, 4189 ms for 3.8, 7.6, 11.6, 15.2 GB)."
        ),
    ),
    phases=(Phase.FIT,),
    fit_order=120,
    last_resort=True,
    knobs=("optimizer_cpu_offload",),
    matches=turns_on("optimizer_cpu_offload"),
    precondition=unless_on("optimizer_cpu_offload", gpu_only),
    changes=_changes,
    slowdown=0.9,
)
