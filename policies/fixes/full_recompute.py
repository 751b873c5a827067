"""Full recompute: keep only each layer's input and recompute the layer in backward.

*What it is*: `recompute_granularity=full`, uniform, one layer at a time.

*How it shows*: out of memory that selective recompute and smaller micro batches do not fix.

*What it costs*: about a third more compute, and every EP dispatch of the forward runs a second time.

*When it does not apply*: full recompute is on already; EP communication overlap and TE-scoped CUDA graphs
refuse it.

*Source*: arXiv 2603.07685 section 4.1.4 (about 33 % compute, re-triggers the EP all-to-all);
Megatron-Bridge 067f987d, docs/performance-guide.md:317 (about 30 %).
"""

from policies.fix import Fix, KnobChanges, MemoryEffect
from policies.recompute import FULL
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    return "full recompute is on" if situation.knob("recompute_granularity") == "full" else None


def _changes(situation: Situation) -> list[KnobChanges]:
    without_overlap = {"overlap_moe_expert_parallel_comm": False, "delay_wgrad_compute": False}
    return [FULL, FULL | without_overlap]


FIX = Fix(
    name="full_recompute",
    title="full recompute",
    phases=(Phase.FIT,),
    precondition=_precondition,
    changes=_changes,
    memory=MemoryEffect(fraction=-0.5, note="activations fall to one layer input per layer"),
    slowdown=0.33,
)
