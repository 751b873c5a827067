"""Sorts tokens by expert in one kernel."""

from analyzers.diagnosis import Wall
from policies.changes.fix import LAUNCHES, Claim, Fix, Page
from policies.changes.matching import turns_on
from policies.changes.switch import gpu_experts_only, turn_on, unless_on
from policies.trial import Phase

FIX = Fix(
    name="permute_fusion",
    title="fused permutation",
    page=Page(
        summary="Fused permutation: sort tokens by expert in one kernel.",
        what="`moe_permute_fusion`.",
        shows="many small index, scatter and copy kernels around dispatch and combine.",
        costs="nothing in memory, intermediates become fewer; needs Transformer Engine 2.1.",
        not_when="it is on, the model is dense, or there is no Transformer Engine.",
        source=(
            "GB200 guide of Megatron-LM eb0783b6d356 (allocation and permute fusion: 494 to 530 TFLOP/s, +7.1 %); "
            "routing and permutation are about 9 % of a layer (arXiv 2603.07685 section 1.2)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(wall=Wall.HOST, parts=LAUNCHES, fraction=0.2, source="+7.1 % on the host-bound GB200 baseline"),
        Claim(wall=Wall.COMPUTE, fraction=0.1, source="permutation is part of 9 % of a layer's time"),
    ),
    knobs=("moe_permute_fusion",),
    matches=turns_on("moe_permute_fusion"),
    precondition=unless_on("moe_permute_fusion", gpu_experts_only),
    changes=turn_on("moe_permute_fusion"),
    chance=0.7,
)
