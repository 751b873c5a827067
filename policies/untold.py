"""The last thing tried: knobs that the closed forms have no opinion on, one at a time, by their walls.

Each has a belief of its own from what was published (`effects.py`), which no more can come of than the wall it acts on
could give back. The one that is worth most goes next; `tune.patience` of them in a row without a gain end it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from analyzers.diagnosis import Wall
from policies.surrogate.surrogate import Surrogate
from policies.effects import Effect, effect_of
from policies.fix import gain_of
from policies.prospects import NO_OPINION, SURE, gives_up, lost
from policies.space import moves
from policies.trial import Z_90, Phase, Prediction, Proposal, Trial
from policies.view import View
from policies.words import leading_wall
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS, Knob


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One knob at another value."""

    knob: Knob
    value: object
    recipe: Recipe
    effect: Effect
    bound: float  # log throughput that the walls it acts on could give
    worth: float


def propose_untold(view: View, belief: Surrogate, *, least: float) -> Proposal | None:
    """The single setting that is worth most, if it is worth `least` (expected log throughput)."""
    if out_of_patience(view):
        return None
    best = max(offers(view, belief), key=lambda offer: offer.worth, default=None)
    if best is None or best.worth < least:
        return None
    most = math.expm1(best.bound) if math.isfinite(best.bound) else best.effect.high
    high = min(best.effect.high, most)
    low = best.effect.low if best.effect.low < high else 0.0
    need = float(belief.memory.peaks(tabulate([best.recipe]))[0])
    return Proposal(
        recipe=best.recipe,
        parent=view.best.number,
        phase=Phase.RETUNE,
        fix="search",
        because=_because(view, best),
        predicted=Prediction(
            gain=min(math.expm1(best.effect.gain), most),
            gain_low=low,
            gain_high=high,
            gain_bound=most,
            peak_gib=need,
            fits_probability=float(belief.memory.fits(tabulate([best.recipe]))[0]),
            published=True,
        ),
    )


def out_of_patience(view: View) -> bool:
    """`tune.patience` single settings in a row brought no gain."""
    return _in_vain(view.trials) >= view.best.recipe.tune.patience


def offers(view: View, belief: Surrogate) -> list[Offer]:
    """Every legal new value of every such knob that fits as surely as the best, less what has lost that way already."""
    single = [
        (KNOBS[axis.name], axis.options[label][axis.name], recipe)
        for axis, label, recipe in moves(view.best.recipe)
        if axis.name in KNOBS
        and not gives_up(view.best.recipe, recipe)
        and recipe.digest() not in view.tried
        and not any(each.meets(recipe) for each in view.refusals)
    ]
    kept = [each for each in single if not _lost_that_way(view, each[0], each[1])]
    if not kept:
        return []
    table = tabulate([view.best.recipe, *(recipe for *_, recipe in kept)])
    log_steps, fits = belief.time.means(table), belief.memory.fits(table)
    unseen = (np.abs(log_steps - log_steps[0]) < NO_OPINION) & (fits >= min(SURE, fits[0]))  # the best ran
    found = [
        _offer(view, knob, value, recipe) for (knob, value, recipe), keep in zip(kept, unseen[1:], strict=True) if keep
    ]
    # What is likely to stay inside the noise would teach nothing
    return [offer for offer in found if offer.effect.high > view.noise and not _lost(offer.effect, belief.time.noise)]


def _lost(effect: Effect, noise: float) -> bool:
    return lost(noise, expected=effect.gain, most=effect.gain + Z_90 * effect.spread)


def _offer(view: View, knob: Knob, value: object, recipe: Recipe) -> Offer:
    effect, bound = effect_of(view.best.recipe, knob.name, value), _bound(view, knob)
    return Offer(knob=knob, value=value, recipe=recipe, effect=effect, bound=bound, worth=effect.worth(at_most=bound))


def _bound(view: View, knob: Knob) -> float:
    """What the largest of its walls could give, as log throughput; no bound without a trace."""
    situation = view.situation
    if situation.analysis is None:
        return math.inf
    us = max(situation.recoverable_us(Wall(wall)) for wall in knob.walls)
    return math.log1p(gain_of(us, situation.step_us))


def _lost_that_way(view: View, knob: Knob, value: object) -> bool:
    """A trial that moved this knob alone, as far or less far the same way, brought no gain."""
    order = knob.tries
    now = view.best.recipe.knob(knob.name)
    if value not in order:
        return False
    for trial in view.trials:
        if trial.accepted or set(trial.changes) != {knob.name}:
            continue
        was, tried = trial.changes[knob.name]
        if tried == value and was == now:
            return True
        if now in order and was == now and tried in order and knob.domain.kind in ("int", "float"):
            here, there, wanted = order.index(now), order.index(tried), order.index(value)
            if here < there <= wanted or wanted <= there < here:
                return True
    return False


def _in_vain(trials: Sequence[Trial]) -> int:
    """Single settings tried in a row, last of all, without a gain; the recipe that is run as the reference apart."""
    searched = (trial for trial in reversed(trials) if trial.proposal.phase is not Phase.FIT)
    return sum(1 for _ in takewhile(lambda trial: trial.proposal.predicted.published and not trial.accepted, searched))


def _because(view: View, offer: Offer) -> str:
    effect, knob = offer.effect, offer.knob
    spread = 100 * Z_90 * effect.spread
    walls = " or ".join(knob.walls)
    most = f" (at most {100 * math.expm1(offer.bound):.1f} % by the trace)" if math.isfinite(offer.bound) else ""
    said = (
        f"the estimate does not model {knob.name}, which acts on {walls}{most}; one setting at a time: "
        f"{100 * effect.gain:+.1f} % ± {spread:.0f} % predicted from published results ({effect.evidence}; "
        f"effects.csv {effect.source})"
    )
    wall = leading_wall(view.situation)
    return f"{wall}; {said}" if wall else said
