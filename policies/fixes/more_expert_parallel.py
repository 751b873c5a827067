"""Splits experts over more ranks."""

from policies.changes.degrees import DEGREES, larger, with_ep
from policies.changes.fix import Fix, KnobChanges, Page
from policies.changes.matching import grows
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    if not situation.is_moe:
        return "the model has no experts"
    return None if larger(situation.recipe, "ep") else "there are no more ranks for EP"


def _changes(situation: Situation) -> list[KnobChanges]:
    recipe = situation.recipe
    return [change for size in larger(recipe, "ep")[:3] for change in with_ep(recipe, size)]


FIX = Fix(
    name="more_expert_parallel",
    title="more expert parallelism",
    page=Page(
        summary="More expert parallelism: fewer experts per rank.",
        what=(
            "`expert_model_parallel_size` times 2, 4 or 8. It folds over the other ranks: data parallelism does not "
            "shrink."
        ),
        shows="out of memory with expert weights, gradients and their optimizer state the largest part.",
        costs=(
            "more tokens leave the rank in dispatch and combine; outside the fast domain several times slower. Expert "
            "weights and gradients divide by EP."
        ),
        not_when="experts or ranks do not divide; the model is dense.",
        source="arXiv 2603.07685 section 9.1 (EP before TP for experts) and section 4.2.1 (volume grows as (EP-1)/EP).",
    ),
    phases=(Phase.FIT,),
    fit_order=60,
    knobs=(DEGREES["ep"],),
    matches=grows(DEGREES["ep"]),
    precondition=_precondition,
    changes=_changes,
    slowdown=0.10,
)
