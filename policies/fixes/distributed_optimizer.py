"""Splits master weights and moments over the data-parallel ranks."""

from policies.changes.fix import Fix, KnobChanges, Page
from policies.changes.matching import turns_on
from policies.situation import Situation
from policies.trial import Phase


def _precondition(situation: Situation) -> str | None:
    if situation.knob("use_distributed_optimizer"):
        return "the distributed optimizer is on"
    if situation.recipe.world_size == 1:
        return "there is one rank"
    return None


def _changes(situation: Situation) -> list[KnobChanges]:
    return [{"use_distributed_optimizer": True}]


FIX = Fix(
    name="distributed_optimizer",
    title="the distributed optimizer",
    page=Page(
        summary="Distributed optimizer: split master weights and moments over the data-parallel ranks.",
        what="`use_distributed_optimizer`.",
        shows="out of memory with optimizer state the largest part while data parallelism is above 1.",
        costs="close to nothing: reduce-scatter and all-gather move the same bytes as the all-reduce.",
        not_when="one data-parallel replica, or it is on.",
        source="arXiv 2603.07685 section 4.1.6 (6 + 12/d bytes per parameter instead of 18).",
    ),
    phases=(Phase.FIT,),
    fit_order=20,
    knobs=("use_distributed_optimizer",),
    matches=turns_on("use_distributed_optimizer"),
    precondition=_precondition,
    changes=_changes,
    slowdown=0.01,
)
