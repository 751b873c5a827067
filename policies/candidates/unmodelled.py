"""Candidates that the surrogate cannot predict.

A fix claims a fraction of a traced loss; a single setting has a published effect (`effects.csv`), bounded by the walls
it acts on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from analyzers.diagnosis import Wall
from policies.candidates.candidate import Candidate, Claimed, PredictionSource, Published
from policies.candidates.effects import effect_of
from policies.candidates.free import gives_up
from policies.candidates.knowledge import Knowledge
from policies.candidates.neighbours import Move, moves_of
from policies.changes.fix import Fix, gain_of
from policies.constants import constant
from policies.fixes import FIXES
from policies.search.acquisition import is_lost_in_noise
from policies.trial import Z_90, Phase
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS, Knob

PUBLISHED_RELIABILITY = constant("published_reliability")


def claimed_fixes(knowledge: Knowledge, phase: Phase) -> list[Candidate]:
    """Returns the fixes of a phase whose claim on the incumbent's trace exceeds the noise and for which the surrogate
    predicts no change. A claim on a traced loss outside the walls counts in full, others are discounted by
    PUBLISHED_RELIABILITY."""
    if knowledge.situation.analysis is None:
        return []
    waits = {part for part, us in knowledge.situation.losses_outside_walls.items() if us > 0}
    named = [fix for fix in FIXES.values() if phase in fix.phases]
    found = [
        (fix, claim, recipe)
        for fix in named
        if (claim := claim_of(fix, knowledge)) and (recipe := _first(fix, knowledge))
    ]
    kept = _unmodelled(knowledge, [recipe for *_, recipe in found])
    return [
        _candidate(knowledge, recipe, claim, fits=fits, in_full=any(waits & set(each.parts) for each in fix.claims))
        for fix, claim, recipe in found
        if (fits := kept.get(recipe.digest())) is not None and not _is_lost(knowledge, claim)
    ]


def settings(knowledge: Knowledge, near: Sequence[Move]) -> list[Candidate]:
    """Returns every legal new value of every single knob for which the surrogate predicts no change, with its published
    effect. Skips values that already lost in this study, and effects that would be lost in the noise."""
    single = [
        (KNOBS[move.dimension], move.changes[move.dimension], move.recipe)
        for move in near
        if move.dimension in KNOBS
        and not gives_up(knowledge.recipe, move.recipe)
        and not knowledge.avoid.excludes(move.recipe)
    ]
    single = [each for each in single if knowledge.avoid.lost_by(knowledge.recipe, {each[0].name: each[1]}) is None]
    kept = _unmodelled(knowledge, [recipe for *_, recipe in single])
    found = (
        _setting(knowledge, *each, fits=fits) for each in single if (fits := kept.get(each[-1].digest())) is not None
    )
    return [each for each in found if each is not None]


def claim_of(fix: Fix, knowledge: Knowledge) -> Claimed | None:
    """Returns a fix's claim on the incumbent's trace; None if it claims nothing, or no more than the noise."""
    situation = knowledge.situation
    found = fix.claimed_us(situation) if fix.claims and situation.analysis is not None else None
    if found is None or gain_of(found[1], situation.step_us) <= knowledge.noise:
        return None
    # a fix may help on every wall it claims, and walls are disjoint parts of the step: the bound is all of them
    bound_us = sum(fix.bound_us(situation, wall) for wall in fix.walls)
    return Claimed(fix=fix, wall=found[0], claimed_us=found[1], bound=gain_of(bound_us, situation.step_us))


def _first(fix: Fix, knowledge: Knowledge) -> Recipe | None:
    """Returns the first of a fix's recipes that was not tried and is not known to fail or lose; None if there is
    none."""
    for recipe in (move.recipe for move in moves_of(fix, knowledge.situation)):
        moved = {knob: to for knob, (_, to) in knowledge.recipe.diff(recipe).items()}
        lost = knowledge.avoid.lost_by(knowledge.recipe, moved) or knowledge.avoid.undone_by(moved)
        if not lost and not knowledge.avoid.excludes(recipe):
            return recipe
    return None


def _unmodelled(knowledge: Knowledge, recipes: Sequence[Recipe]) -> dict[str, float]:
    """Returns {digest: P(fits)} of the recipes whose step time the closed form predicts unchanged and whose P(fits) is
    high enough."""
    if not recipes:
        return {}
    table = tabulate([knowledge.recipe, *recipes])
    log_steps, fits = knowledge.surrogate.time.means(table), knowledge.surrogate.memory.fits(table)
    same = abs(log_steps - log_steps[0]) < constant("unmodelled_log_step")
    keep = same & (fits >= knowledge.min_fit_unmodelled)
    rows = zip(recipes, fits[1:].tolist(), keep[1:], strict=True)
    return {recipe.digest(): chance for recipe, chance, kept in rows if kept}


def _candidate(knowledge: Knowledge, recipe: Recipe, claim: Claimed, *, fits: float, in_full: bool) -> Candidate:
    log_gain = math.log1p(_gain(knowledge, claim))
    return Candidate(
        recipe=recipe,
        source=PredictionSource.TRACE,
        log_step=-log_gain,
        deviation=0.0,
        noise=knowledge.surrogate.time.noise,
        log_gain=log_gain,
        fits_probability=fits,
        expected_improvement=log_gain,
        score=log_gain * (1.0 if in_full else PUBLISHED_RELIABILITY),
        claimed=claim,
    )


def _gain(knowledge: Knowledge, claim: Claimed) -> float:
    """Returns the expected gain of a claim (fraction of throughput), weighted by the probability that the fix brings
    one."""
    return gain_of(claim.claimed_us * knowledge.chance(claim.fix), knowledge.situation.step_us)


def _is_lost(knowledge: Knowledge, claim: Claimed) -> bool:
    expected, most = math.log1p(_gain(knowledge, claim)), math.log1p(claim.bound)
    return is_lost_in_noise(knowledge.surrogate.time.noise, expected=expected, most=most)


def _setting(knowledge: Knowledge, knob: Knob, value: object, recipe: Recipe, *, fits: float) -> Candidate | None:
    """Returns the candidate of one knob at another value; None if its effect is likely to stay within the noise."""
    effect, bound, noise = (
        effect_of(knowledge.recipe, knob.name, value),
        _bound(knowledge, knob),
        knowledge.surrogate.time.noise,
    )
    most = effect.gain + Z_90 * effect.spread
    if effect.high <= knowledge.noise or is_lost_in_noise(noise, expected=effect.gain, most=most):
        return None
    improvement = effect.expected_improvement(at_most=bound)
    return Candidate(
        recipe=recipe,
        source=PredictionSource.PUBLISHED,
        log_step=-effect.gain,
        deviation=effect.spread,
        noise=noise,
        log_gain=effect.gain,
        fits_probability=fits,
        expected_improvement=improvement,
        score=improvement * PUBLISHED_RELIABILITY,
        published=Published(knob=knob, effect=effect, bound=bound),
    )


def _bound(knowledge: Knowledge, knob: Knob) -> float:
    """Returns the most that the largest of the knob's walls could give back, as log throughput; inf without a trace."""
    situation = knowledge.situation
    if situation.analysis is None:
        return math.inf
    us = max(situation.recoverable_us(Wall(wall)) for wall in knob.walls)
    return math.log1p(gain_of(us, situation.step_us))
