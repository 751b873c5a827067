"""Computes all experts of a rank in one kernel."""

from analyzers.diagnosis import Wall
from policies.changes.fix import LAUNCHES, Claim, Fix, Page
from policies.changes.matching import turns_on
from policies.changes.switch import experts_only, turn_on, unless_on
from policies.trial import Phase

FIX = Fix(
    name="grouped_gemm",
    title="grouped GEMM",
    page=Page(
        summary="Grouped GEMM: all experts of a rank in one kernel.",
        what="`moe_grouped_gemm`.",
        shows="one small GEMM per expert, the host launching between them; compute far below attainable.",
        costs="nothing in memory: the same tensors in one call.",
        not_when="it is on, or a rank has one expert.",
        source=(
            "arXiv 2603.07685 section 9.1 (first fix for low utilisation); GEMM M is about 128 tokens per expert on "
            "DeepSeek-V3 (section 4.3.1)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(wall=Wall.COMPUTE, fraction=0.4, source="experts' GEMMs of 128 rows leave most of a GPU idle"),
        Claim(wall=Wall.HOST, parts=LAUNCHES, fraction=0.4, source="one launch instead of one per expert"),
    ),
    knobs=("moe_grouped_gemm",),
    matches=turns_on("moe_grouped_gemm"),
    precondition=unless_on("moe_grouped_gemm", experts_only),
    changes=turn_on("moe_grouped_gemm"),
    chance=0.7,
)
