"""Gradient reduction overlapped with backward.

*What it is*: `overlap_grad_reduce`: buckets of gradients are reduced while backward still computes.

*How it shows*: DP reduce-scatter or all-reduce exposed at the end of the step.

*What it costs*: nothing in memory; the last bucket stays exposed.

*When it does not apply*: one data-parallel replica, or it is on.

*Source*: arXiv 2603.07685 section 9.1 (first fix for exposed DP); Megatron-Bridge 067f987d,
skills/nemo-mbridge-perf-moe-optimization-workflow.
"""

from analyzers.diagnosis import Wall
from policies.fix import DP, Claim, Fix, MemoryEffect, Proof
from policies.switch import turn_on, unless_on
from policies.trial import Phase

FIX = Fix(
    name="overlap_grad_reduce",
    title="gradient reduction overlap",
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=DP,
            fraction=0.5,
            source="the reduction is half of DP's volume; all but the last bucket hides under backward",
        ),
    ),
    precondition=unless_on("overlap_grad_reduce"),
    changes=turn_on("overlap_grad_reduce"),
    memory=MemoryEffect(fraction=0.0, note="the gradient buffers are there already"),
    chance=0.7,
    proof=Proof(measure="dp_exposed", moves=-1),
)
