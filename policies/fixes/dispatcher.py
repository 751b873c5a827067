"""Changes the token dispatcher."""

from analyzers.diagnosis import Wall
from policies.changes.fix import EP, Claim, Fix, KnobChanges, Page
from policies.changes.matching import moves
from policies.changes.switch import expert_parallel_only
from policies.situation import Situation
from policies.trial import Phase

ALLTOALL: KnobChanges = {"moe_token_dispatcher_type": "alltoall"}
ALLGATHER: KnobChanges = {"moe_token_dispatcher_type": "allgather"}
BACKEND = "moe_flex_dispatcher_backend"
DEEPEP: KnobChanges = {"moe_token_dispatcher_type": "flex", BACKEND: "deepep"}
HYBRIDEP: KnobChanges = {"moe_token_dispatcher_type": "flex", BACKEND: "hybridep"}


def _changes(situation: Situation) -> list[KnobChanges]:
    """Returns the other dispatchers and backends to try.

    Racks with one NVLink domain try HybridEP first (Megatron-Bridge, skills/nemo-mbridge-perf-moe-hardware-configs); a
    backend that the GPU is not known to support is left out.
    """
    hardware = situation.recipe.hardware
    ordered = [HYBRIDEP, DEEPEP] if hardware.is_rack_scale else [DEEPEP, HYBRIDEP]
    flex = [change for change in ordered if change[BACKEND] in (hardware.flex_backends or ())]
    without_shared_overlap = [
        change | {"moe_shared_expert_overlap": False} for change in flex if situation.knob("moe_shared_expert_overlap")
    ]
    return [*(without_shared_overlap or flex), ALLTOALL, ALLGATHER]


FIX = Fix(
    name="dispatcher",
    title="another token dispatcher",
    page=Page(
        summary="Another token dispatcher.",
        what="`moe_token_dispatcher_type`: alltoall, allgather, or flex with the backend deepep or hybridep.",
        shows="EP dispatch and combine exposed, more so across nodes.",
        costs=(
            "DeepEP takes 20 SMs; DeepEP and HybridEP keep their own buffers; the packages must be installed; "
            "allgather sends every token everywhere."
        ),
        not_when="EP is 1; flex on a CPU; a small top-k inside one node, where alltoall is as good.",
        source=(
            "arXiv 2603.07685 table 7 (H100, dispatch: HybridEP 1.9 to 3.9 times faster than the all-to-all); GB200 "
            "guide of Megatron-LM eb0783b6d356 (DeepEP +4.8 %, HybridEP +13.7 %); Megatron-Bridge commit 14a29340e "
            "(GPT-OSS-120B, GB200: alltoall beats HybridEP by 4.2 %)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=EP,
            fraction=0.5,
            source="HybridEP and DeepEP take half to a quarter of the all-to-all's time across H100 nodes (table 7)",
        ),
    ),
    knobs=("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
    matches=moves("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
    precondition=expert_parallel_only,
    changes=_changes,
    chance=0.6,
)
