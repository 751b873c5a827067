"""Lets the allocator grow its blocks instead of adding new ones."""

from analyzers.diagnosis import Wall
from policies.changes.fix import Claim, Fix, KnobChanges, Page
from policies.changes.matching import becomes
from policies.changes.switch import gpu_only
from policies.situation import Situation
from policies.trial import Phase

SETTING = "expandable_segments:True"


def _precondition(situation: Situation) -> str | None:
    if SETTING in (situation.knob("PYTORCH_CUDA_ALLOC_CONF") or ""):
        return "expandable segments are on"
    return gpu_only(situation)


def _changes(situation: Situation) -> list[KnobChanges]:
    other = situation.knob("PYTORCH_CUDA_ALLOC_CONF")
    setting: KnobChanges = {"PYTORCH_CUDA_ALLOC_CONF": f"{other},{SETTING}" if other else SETTING}
    graphs = situation.knob("cuda_graph_impl") != "none"
    return [setting | {"NCCL_GRAPH_REGISTER": 0} if graphs else setting]


FIX = Fix(
    name="expandable_segments",
    title="expandable allocator segments",
    page=Page(
        summary="Expandable segments: let the allocator grow its blocks instead of adding new ones.",
        what="`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` (with CUDA graphs also `NCCL_GRAPH_REGISTER=0`).",
        shows="out of memory with much more reserved than allocated; one rank fails while others have room.",
        costs=(
            "nothing measured; with CUDA graphs NCCL's graph registration must be off. Reserved memory comes down to "
            "what is allocated."
        ),
        not_when="on CPUs; it is on; with NCCL user buffers.",
        source=(
            "Megatron-Bridge 067f987d, skills/nemo-mbridge-perf-memory-tuning card.yaml:136 (Llama3-70B: out of memory "
            "at 58.8 GB becomes a pass at 59 GB, same throughput)."
        ),
    ),
    phases=(Phase.FIT, Phase.PROFILE),
    fit_order=10,
    claims=(
        Claim(
            wall=Wall.MEMORY,
            parts=("allocator",),
            fraction=0.9,
            source="retries end when the fragmentation that causes them is gone",
        ),
    ),
    knobs=("PYTORCH_CUDA_ALLOC_CONF",),
    matches=becomes("PYTORCH_CUDA_ALLOC_CONF", lambda value: SETTING in (value or "")),
    precondition=_precondition,
    changes=_changes,
    chance=0.6,
)
