"""The recipes that may come next, from the whole legal space, each with what is believed of it.

The space is `plan`'s: every legal layout with every setting; beside it stand the neighbours of the best along the axes
of `space.py`, which reach what a plan does not vary. All are scored together: expected improvement over the best, times
the probability of fitting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import norm

from policies.belief.belief import Belief
from policies.legality import Refusal, derive
from policies.space import AXES, CURRENT, axis_of
from trainer.estimate.candidates import Candidates, Floats, tabulate
from trainer.estimate.plan.choices import broken, written_out
from trainer.estimate.plan.search import Search, search
from trainer.recipe import Recipe

ROOM = 1.12  # times the limit by the upper bound: beyond, a recipe hardly ever fits
SHORT_LIST = 400  # rows of the space that get an interval
LIKELY = 0.5  # P(fits) below which a row is not short-listed while others are
SURE, BOLD = 0.9, 0.6  # P(fits) asked of a burst before anything has run, and after: an OOM teaches little
TIMID = 0.1  # weight of what is less likely to fit
# Switched on wherever they are legal: no estimate sees them, and they cost nothing
FREE: tuple[dict[str, object], ...] = (
    {"delay_wgrad_compute": True},
    {"moe_shared_expert_overlap": True},
    {"manual_gc": True, "manual_gc_interval": 100},
)


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """`gain` is the expected log of throughput over the best's (None: nothing runs yet), `deviation` that of the log
    step; `score` is what candidates are ranked by."""

    recipe: Recipe
    log_step: float
    deviation: float
    gain: float | None
    fits: float
    score: float


@lru_cache(maxsize=4)
def _space(digest: str, holder: _Holder) -> Search:
    return search(holder.recipe, room=ROOM)


class _Holder:
    """A recipe that a cache knows by its digest."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Holder)


def space_of(base: Recipe) -> Search:
    """Every legal layout with every setting, found once a study."""
    return _space(base.digest(), _Holder(base))


def prospects(base: Recipe, best: Recipe | None, belief: Belief, tried: set[str] | dict[str, int]) -> Iterator[Prospect]:
    """The best first; none that was tried, no frozen knob moved, all legal. `best` is None while nothing runs."""
    found = space_of(base)
    rows = _short_list(found, belief)
    table = found.finals.candidates.take(rows)
    near = list(_neighbours(best)) if best else []
    groups = [_scores(table, best, belief)] + ([_scores(tabulate(near), best, belief)] if near else [])
    log_step, deviation, gain, fits, score = (np.concatenate(columns) for columns in zip(*groups, strict=True))
    seen = set(tried)
    for at in np.argsort(-score, kind="stable"):
        recipe = near[at - table.count] if at >= table.count else _written(found, table, int(at))
        if recipe is None or recipe.digest() in seen:
            continue
        seen.add(recipe.digest())
        yield Prospect(
            recipe=recipe,
            log_step=float(log_step[at]),
            deviation=float(deviation[at]),
            gain=float(gain[at]) if best else None,
            fits=float(fits[at]),
            score=float(score[at]),
        )


def _short_list(found: Search, belief: Belief) -> Floats:
    """Rows of the finals: the fastest that are likely to fit, the likeliest where none is."""
    table = found.finals.candidates
    means = belief.time.means(table)
    fits = belief.memory.fits(table)
    likely = np.flatnonzero(fits >= LIKELY)
    if not len(likely):
        return np.argsort(-fits, kind="stable")[:SHORT_LIST]
    return likely[np.argsort(means[likely], kind="stable")[:SHORT_LIST]]


def _scores(table: Candidates, best: Recipe | None, belief: Belief) -> tuple[Floats, ...]:
    log_step, deviation = belief.time.predict(table)
    fits = belief.memory.fits(table)
    if best is None:
        sure = np.where(fits >= SURE, 0.0, np.log(np.maximum(fits, 1e-12)) - 10.0)
        return log_step, deviation, np.zeros_like(log_step), fits, sure - log_step
    now, _ = belief.time.predict(tabulate([best]))
    gain = now[0] - log_step
    z = gain / deviation
    improvement = deviation * norm.pdf(z) + gain * norm.cdf(z)
    return log_step, deviation, gain, fits, improvement * np.where(fits >= BOLD, fits, TIMID * fits)


def _written(found: Search, table: Candidates, row: int) -> Recipe | None:
    """A row as it would run, with what is free."""
    recipe = written_out(table.recipe(row))
    if broken(recipe, found.standing):
        return None
    for changes in FREE:
        derived = derive(recipe, changes)
        recipe = recipe if isinstance(derived, Refusal) else derived
    return recipe


def _neighbours(best: Recipe) -> Iterator[Recipe]:
    """One step along every axis."""
    for name in AXES:
        axis = axis_of(name, best, lambda recipe: True)
        for label, changes in axis.options.items() if axis else ():
            derived = derive(best, changes)
            if label != CURRENT and not isinstance(derived, Refusal):
                yield derived


def improvement(gains: Sequence[float]) -> float:
    return max(gains, default=0.0)
