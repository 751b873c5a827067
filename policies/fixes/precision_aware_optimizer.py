"""Precision-aware optimizer: moments in bf16.

*What it is*: `use_precision_aware_optimizer` with bf16 `exp_avg_dtype` and `exp_avg_sq_dtype`.

*How it shows*: out of memory with optimizer state the largest part.

*What it costs*: nothing in time; numerics change a little, so the recipe must allow it.

*When it does not apply*: no distributed optimizer, no Transformer Engine, or it is on.

*Source*: arXiv 2603.07685 section 4.1.6 (6 + 12/d to 6 + 8/d bytes per parameter; 10 to 12 of 32 GB on
DeepSeek-V3).
"""

from policies.fix import Fix, MemoryEffect
from policies.switch import gpu_only, turn_on, unless_on
from policies.trial import Phase

FIX = Fix(
    name="precision_aware_optimizer",
    title="optimizer moments in bf16",
    phases=(Phase.FIT,),
    precondition=unless_on("use_precision_aware_optimizer", gpu_only),
    changes=turn_on(
        "use_precision_aware_optimizer",
        use_distributed_optimizer=True,
        exp_avg_dtype="bfloat16",
        exp_avg_sq_dtype="bfloat16",
    ),
    memory=MemoryEffect(fraction=-0.06, note="10 to 12 of 200 GB on DeepSeek-V3"),
    slowdown=0.01,
)
