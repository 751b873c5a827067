"""Replays launches from CUDA graphs instead of issuing them."""

from analyzers.diagnosis import Wall
from policies.changes.fix import LAUNCHES, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import becomes
from policies.changes.switch import gpu_only
from policies.situation import Situation
from policies.trial import Phase
from trainer.recipe import Recipe


def _precondition(situation: Situation) -> str | None:
    implementation = situation.knob("cuda_graph_impl")
    return "CUDA graphs are on" if implementation not in (None, "none") else gpu_only(situation)


def graph_changes(recipe: Recipe) -> list[KnobChanges]:
    """Returns scopes from the one that covers most launches to the narrowest."""
    experts = ("moe_router", "moe_preprocess") if recipe.architecture.num_moe_experts else ()
    scopes = [("attn", *experts), experts] if experts else [("attn",)]
    graphs: KnobChanges = {"cuda_graph_impl": "transformer_engine", "use_te_rng_tracker": True}
    if "expandable_segments" in (recipe.knob("PYTORCH_CUDA_ALLOC_CONF") or ""):
        graphs["NCCL_GRAPH_REGISTER"] = 0
    return [graphs | {"cuda_graph_scope": scope} for scope in scopes]


def _changes(situation: Situation) -> list[KnobChanges]:
    return graph_changes(situation.recipe)


FIX = Fix(
    name="cuda_graphs",
    title="CUDA graphs",
    page=Page(
        summary="CUDA graphs: replay launches instead of issuing them.",
        what=(
            "Transformer-Engine-scoped graphs, the widest scope first: `attn` with `moe_router` and `moe_preprocess`, "
            "then without `attn`."
        ),
        shows="the device idle, waiting for launches (host wall) with static shapes.",
        costs=(
            "about 7 GB of static buffers for partial graphs on DeepSeek-V3, more than 10 GB with PP; capture at start."
        ),
        not_when="full recompute, dynamic shapes, on CPUs; graphs are on.",
        source=(
            "Megatron-Bridge 067f987d, skills/nemo-mbridge-perf-cuda-graphs card.yaml:173 (Qwen3-30B, 16 H100: 623 to "
            "484 ms, -22 %) and :46 (a neutral case, +1.5 %); arXiv 2603.07685 section 4.3.6 (+10 % end to end, +7 "
            "GB)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.HOST,
            parts=LAUNCHES,
            fraction=0.7,
            source="-22 % of a host-bound step; experts stay eager",
        ),
    ),
    knobs=("cuda_graph_impl",),
    matches=becomes("cuda_graph_impl", lambda value: value not in (None, "none")),
    precondition=_precondition,
    changes=_changes,
    chance=0.7,
    proof=Proof(measure="host_idle", moves=-1),
)
