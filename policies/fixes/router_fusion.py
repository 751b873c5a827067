"""Computes the router's top-k, softmax and auxiliary loss in a few kernels."""

from analyzers.diagnosis import Wall
from policies.changes.fix import LAUNCHES, Claim, Fix, Page
from policies.changes.matching import turns_on
from policies.changes.switch import gpu_experts_only, turn_on, unless_on
from policies.trial import Phase

FIX = Fix(
    name="router_fusion",
    title="a fused router",
    page=Page(
        summary="Fused router: top-k, softmax and auxiliary loss in a few kernels.",
        what="`moe_router_fusion`.",
        shows="dozens of tiny kernels in the router range, the device waiting between them.",
        costs="nothing in memory, intermediates become fewer; needs Transformer Engine 2.7.",
        not_when="it is on, the model is dense, or there is no Transformer Engine.",
        source="GB200 guide of Megatron-LM eb0783b6d356:214 (72 to 31 kernels, 530 to 540 TFLOP/s, +2.0 %).",
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(wall=Wall.HOST, parts=LAUNCHES, fraction=0.1, source="+2.0 % on the host-bound GB200 baseline"),
        Claim(wall=Wall.COMPUTE, fraction=0.05, source="72 kernels become 31"),
    ),
    knobs=("moe_router_fusion",),
    matches=turns_on("moe_router_fusion"),
    precondition=unless_on("moe_router_fusion", gpu_experts_only),
    changes=turn_on("moe_router_fusion"),
    chance=0.6,
)
