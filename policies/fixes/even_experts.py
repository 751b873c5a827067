"""Evens out the number of tokens between the ranks' experts."""

from analyzers.diagnosis import Wall
from policies.changes.fix import LOAD, Claim, Fix, KnobChanges, Page
from policies.changes.matching import moves
from policies.changes.switch import experts_only
from policies.situation import Situation
from policies.trial import Phase

FACTORS = (1.25, 1.0)  # capacities over the mean load, the gentler first
UNBALANCED = "none"


def _precondition(situation: Situation) -> str | None:
    if situation.knob("expert_model_parallel_size") == 1:
        return "EP is 1: all experts are on each rank"
    if situation.knob("moe_router_force_load_balancing"):
        return "the router is forced to balance"
    if situation.knob("moe_expert_capacity_factor") is not None:
        return "the experts' capacity is set"
    return experts_only(situation)


def _changes(situation: Situation) -> list[KnobChanges]:
    balanced: list[KnobChanges] = [{"moe_router_load_balancing_type": "aux_loss"}]
    unbalanced = situation.knob("moe_router_load_balancing_type") == UNBALANCED
    return [*(balanced if unbalanced else []), *({"moe_expert_capacity_factor": factor} for factor in FACTORS)]


FIX = Fix(
    name="even_experts",
    title="evening out the experts' load",
    page=Page(
        summary="Even experts: no rank's experts get far more tokens than the others'.",
        what=(
            "`moe_router_load_balancing_type` at `aux_loss` where nothing balances the router, else "
            "`moe_expert_capacity_factor`: an expert takes at most that many times the mean, the rest is dropped."
        ),
        shows=(
            "in each layer ranks wait in combine for the one whose grouped GEMMs take longest, while all other compute "
            "takes the same on every rank."
        ),
        costs="the numerics change; dropped tokens skip their expert. The busiest rank's activations shrink.",
        not_when="the model is dense, EP is 1, a capacity is set, or the recipe allows no change of numerics.",
        source=(
            "Megatron-MoE-ModelZoo e8650517 (natural against forced balance: -4.3 % on Mixtral-8x22B, -8 to -20 % on "
            "Qwen3-235B-A22B; capacity 1.0 against dropless: +5.6 %)."
        ),
    ),
    phases=(Phase.PROFILE, Phase.RETUNE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=LOAD,
            fraction=0.8,
            source="capacity 1.0: 445 to 470 TFLOP/s where forced balance gives 465",
        ),
    ),
    knobs=("moe_expert_capacity_factor", "moe_router_load_balancing_type"),
    matches=moves("moe_expert_capacity_factor", "moe_router_load_balancing_type"),
    precondition=_precondition,
    changes=_changes,
    chance=0.5,
)
