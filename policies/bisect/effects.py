"""Predicted effects of differences: by estimate, or by published effects where the estimate predicts no change."""

from __future__ import annotations

import math
from collections.abc import Iterator

from policies.bisect.differences import Difference, Ends
from policies.bisect.guilt import Predicted
from policies.candidates.effects import UNLISTED, effect_of, effects
from policies.constants import constant
from policies.surrogate.blas import one_blas_thread
from policies.surrogate.time import TimeSurrogate, fit_time
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

UNMODELLED = constant("unmodelled_log_step")


@one_blas_thread()
def predicted_effects(ends: Ends, time: TimeSurrogate | None = None) -> tuple[Predicted, ...]:
    """Returns the predicted effect of each difference, applied to A alone, or, where that is illegal, on top of all
    others: by the surrogate, or the published effect where that predicts none.

    time: the surrogate of the cluster of A and B, None before any burst.
    """
    time = time or fit_time([])
    return tuple(
        _modelled(time, before, after) or _published(ends.a, each)
        for each, (before, after) in zip(ends.differences, _pairs(ends), strict=True)
    )


def _pairs(ends: Ends) -> Iterator[tuple[Recipe, Recipe]]:
    """Yields (recipe without, recipe with) for each difference: A or B is one of the two.

    Yields (A, A) if neither is legal.
    """
    legal, everything = ends.legal, frozenset(range(len(ends.differences)))
    for at in sorted(everything):
        if legal(frozenset({at})):
            yield ends.a, ends.recipe(frozenset({at}))
        elif legal(everything - {at}):
            yield ends.recipe(everything - {at}), ends.b
        else:
            yield ends.a, ends.a


def _modelled(time: TimeSurrogate, before: Recipe, after: Recipe) -> Predicted | None:
    """Returns the effect by estimate; None if the estimate predicts no change."""
    mean, deviation = time.difference(time.closed_form(tabulate([after])), time.closed_form_of(before))
    log_cost = float(mean[0]) - math.log(after.training.tokens_per_step / before.training.tokens_per_step)
    return Predicted(log_cost=log_cost, deviation=float(deviation[0])) if abs(log_cost) > UNMODELLED else None


def _published(a: Recipe, difference: Difference) -> Predicted:
    """Returns the largest published effect of the knobs of a difference.

    A difference without a knob has the effect of `*`, the row for all other settings.
    """
    known = [effect_of(a, place, after) for place, (_, after) in difference.changes.items() if place in KNOBS]
    largest = max(known, key=lambda each: abs(each.gain), default=effects()[UNLISTED])
    return Predicted(log_cost=-largest.gain, deviation=largest.spread, published=True)
