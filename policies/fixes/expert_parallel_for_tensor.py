"""Replaces expert tensor parallelism by expert parallelism."""

from analyzers.diagnosis import Wall
from policies.changes.degrees import DEGREES
from policies.changes.fix import TP, Claim, Fix, KnobChanges, Page, Proof
from policies.changes.matching import grows, shrinks
from policies.situation import Situation
from policies.trial import Phase
from trainer.recipe import Recipe


def _precondition(situation: Situation) -> str | None:
    if not situation.is_moe:
        return "the model has no experts"
    return "experts are not split by TP" if situation.recipe.expert_tensor_parallel_size == 1 else None


def _changes(situation: Situation) -> list[KnobChanges]:
    ep = situation.knob(DEGREES["ep"])
    factor = situation.recipe.expert_tensor_parallel_size
    whole = {"expert_tensor_parallel_size": 1}
    return [whole | {DEGREES["ep"]: ep * factor}] + ([whole] if ep > 1 else [])


def _matches(before: Recipe, after: Recipe) -> bool:
    """Returns true if ETP falls while EP grows, or ETP falls alone where EP splits the experts already."""
    if not shrinks("expert_tensor_parallel_size")(before, after):
        return False
    alone = all(before.knob(DEGREES[name]) == after.knob(DEGREES[name]) for name in ("tp", "ep"))
    return grows(DEGREES["ep"])(before, after) or (alone and after.knob(DEGREES["ep"]) > 1)


FIX = Fix(
    name="expert_parallel_for_tensor",
    title="expert parallelism instead of expert tensor parallelism",
    page=Page(
        summary="Expert parallelism instead of expert tensor parallelism: whole experts on fewer ranks each.",
        what="`expert_tensor_parallel_size=1` with `expert_model_parallel_size` raised by the same factor.",
        shows="TP collectives around the experts, grouped GEMMs narrower than necessary.",
        costs="nothing in weight memory (the product stays); more ranks take part in dispatch.",
        not_when="ETP is 1 already, or experts do not divide by the larger EP.",
        source="arXiv 2603.07685 section 9.1 (Mixtral: EP8 x TP1 beats EP4 x TP2; EP over TP for experts).",
    ),
    phases=(Phase.SCALE, Phase.PROFILE),
    claims=(
        Claim(
            wall=Wall.COMMUNICATION,
            parts=TP,
            fraction=0.5,
            source="half of a MoE layer's TP collectives are the experts' (arXiv 2603.07685 section 9.1)",
        ),
        Claim(wall=Wall.COMPUTE, fraction=0.2, source="expert matrices keep their full width"),
    ),
    knobs=("expert_tensor_parallel_size", DEGREES["ep"]),
    matches=_matches,
    precondition=_precondition,
    changes=_changes,
    chance=0.7,
    proof=Proof(measure="tp_busy", moves=-1),
)
