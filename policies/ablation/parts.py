"""The named changes of a tuned recipe, and what taking each out is predicted to cost."""

from __future__ import annotations

from dataclasses import dataclass

from analyzers.diagnosis import Wall
from policies.bisect.differences import Difference, Ends
from policies.bisect.effects import predicted_effects
from policies.bisect.guilt import Predicted
from policies.bisect.question import Subset
from policies.candidates.knowledge import Knowledge
from policies.constants import constant
from policies.trial import ChangeState
from policies.tuner.decomposition import members, wall_of
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe

COSTS_NOTHING = constant("ablation_costs_nothing")
MIN_CHANCE = constant("ablation_least_chance")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One named change of the tuned recipe, a fix with its companions or a knob by itself.

    `predicted` is the log cost of taking it out; `kept_because` is why no burst will take it out, None if one may.
    """

    name: str
    wall: Wall | None
    knobs: tuple[str, ...]
    predicted: Predicted
    kept_because: ChangeState | None


def ends_between(tuned: Recipe, given: Recipe) -> Ends:
    """Returns the tuned recipe as A and the given one as B: taking a difference from B takes one named change out."""
    differences = tuple(
        Difference(name=each.name, changes={knob: (tuned.knob(knob), given.knob(knob)) for knob in each.knobs})
        for each in members(given, tuned)
    )
    return Ends(a=tuned, b=given, differences=differences)


def parts_between(ends: Ends, knowledge: Knowledge) -> tuple[Part, ...]:
    """Returns the changes in the order of `ends.differences`. `knowledge` has the tuned recipe as its incumbent."""
    predicted = predicted_effects(ends, knowledge.surrogate.time)
    rows = zip(members(ends.b, ends.a), predicted, strict=True)
    return tuple(
        Part(
            name=each.name,
            wall=wall_of(each, knowledge.situation),
            knobs=each.knobs,
            predicted=cost,
            kept_because=_kept_because(frozenset({at}), cost, ends, knowledge),
        )
        for at, (each, cost) in enumerate(rows)
    )


def may_run(subset: Subset, ends: Ends, knowledge: Knowledge) -> bool:
    """Returns whether the tuned recipe without some changes is legal, should fit, and is not known to be refused by the
    trainer."""
    return ends.legal(subset) and _fits(ends.recipe(subset), knowledge)


def _kept_because(alone: Subset, predicted: Predicted, ends: Ends, knowledge: Knowledge) -> ChangeState | None:
    if not ends.legal(alone):
        return ChangeState.ILLEGAL
    if not _fits(ends.recipe(alone), knowledge):
        return ChangeState.MAY_NOT_FIT
    return ChangeState.PREDICTED if predicted.exceeds(COSTS_NOTHING) > 1 - MIN_CHANCE else None


def _fits(recipe: Recipe, knowledge: Knowledge) -> bool:
    if knowledge.avoid.refusal(recipe) is not None:
        return False
    return float(knowledge.surrogate.memory.fits(tabulate([recipe]))[0]) >= knowledge.min_fit_unmodelled
