"""Keeps optimizer moments in bf16."""

from policies.changes.fix import Fix, Page
from policies.changes.matching import turns_on
from policies.changes.switch import gpu_only, turn_on, unless_on
from policies.trial import Phase

FIX = Fix(
    name="precision_aware_optimizer",
    title="optimizer moments in bf16",
    page=Page(
        summary="Precision-aware optimizer: moments in bf16.",
        what="`use_precision_aware_optimizer` with bf16 `exp_avg_dtype` and `exp_avg_sq_dtype`.",
        shows="out of memory with optimizer state the largest part.",
        costs="nothing in time; numerics change a little, so the recipe must allow it.",
        not_when="no distributed optimizer, no Transformer Engine, or it is on.",
        source=(
            "arXiv 2603.07685 section 4.1.6 (6 + 12/d to 6 + 8/d bytes per parameter; 10 to 12 of 32 GB on "
            "DeepSeek-V3)."
        ),
    ),
    phases=(Phase.FIT,),
    fit_order=50,
    knobs=("use_precision_aware_optimizer",),
    matches=turns_on("use_precision_aware_optimizer"),
    precondition=unless_on("use_precision_aware_optimizer", gpu_only),
    changes=turn_on(
        "use_precision_aware_optimizer",
        use_distributed_optimizer=True,
        exp_avg_dtype="bfloat16",
        exp_avg_sq_dtype="bfloat16",
    ),
    slowdown=0.01,
)
