"""Grouped GEMM: all experts of a rank in one kernel.

*What it is*: `moe_grouped_gemm`.

*How it shows*: one small GEMM per expert, the host launching between them; compute far below attainable.

*What it costs*: nothing in memory.

*When it does not apply*: it is on, or a rank has one expert.

*Source*: arXiv 2603.07685 section 9.1 (first fix for low utilisation); GEMM M is about 128 tokens per expert
on DeepSeek-V3 (section 4.3.1).
"""

from analyzers.diagnosis import Wall
from policies.fix import LAUNCHES, Claim, Fix, MemoryEffect
from policies.switch import experts_only, turn_on, unless_on
from policies.trial import Phase

FIX = Fix(
    name="grouped_gemm",
    title="grouped GEMM",
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(wall=Wall.COMPUTE, fraction=0.4, source="experts' GEMMs of 128 rows leave most of a GPU idle"),
        Claim(wall=Wall.HOST, parts=LAUNCHES, fraction=0.4, source="one launch instead of one per expert"),
    ),
    precondition=unless_on("moe_grouped_gemm", experts_only),
    changes=turn_on("moe_grouped_gemm"),
    memory=MemoryEffect(fraction=0.0, note="the same tensors in one call"),
    chance=0.7,
)
