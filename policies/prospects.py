"""The recipes that may come next, from the whole legal space, each with what is believed of it.

The space is `plan`'s: every legal layout with every setting; beside it stand the neighbours of the best along the axes
of `space.py`, which reach what a plan does not vary. All are scored together: expected improvement over the best, times
the probability of fitting.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import norm

from policies.surrogate.kernel import features
from policies.surrogate.surrogate import Surrogate
from policies.surrogate.time import ClosedForm
from policies.effects import gained
from policies.legality import Refusal, derive
from policies.refusals import Refused
from policies.space import CURRENT, Axis
from policies.trial import Status, Trial
from trainer.estimate.candidates import Candidates, Floats, Integers, tabulate
from trainer.estimate.plan.choices import broken, written_out
from trainer.estimate.plan.search import Search
from trainer.estimate.plan.space import ALWAYS
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import check

ROOM = 1.2  # times the limit by the upper bound: beyond, a recipe hardly ever fits
SHORT_LIST = 400  # rows of the space that get an interval
LIKELY = 0.5  # P(fits) asked while no proposal has run out of memory
WARIER = 0.2  # of the chance to run out that is left by each that has: 0.5, then 0.9, 0.98 are asked
SURE = 0.9  # P(fits) asked of a burst before anything has run
FEW = 12  # single moves whose pairs are looked at
HOPE = 0.25  # of what two bursts differ by: a gain that is expected to be less is hardly ever told from none
NO_OPINION = 0.001  # log step: a change that the closed forms do not see
CAUTION = 4.0  # power of P(fits) by which worth falls: an OOM costs a burst and teaches little
# Deviations by which a recipe may be told to lose: 66 bursts on recipes that were told to lose by 0.7 to 1.1 brought
# 0.09 % each (losses counted as none), 65 by 0.3 to 0.7 0.14 % (32 studies of benchmarks.policy)
LOSING = 0.7
DOUBTED = 0.9  # of a recipe's worth lost where it shares all that may have made another fail
Move = tuple[Axis, str, Recipe]  # along an axis, its option, and what it makes
Doubt = Mapping[str, Any]  # knob -> value that only a failed recipe has had
# Switched on wherever they are legal on GPUs: they cost nothing
FREE: tuple[dict[str, object], ...] = (
    {"cpu_affinity": "spread"},
    {"delay_wgrad_compute": True},
    {"moe_shared_expert_overlap": True},
    {"manual_gc": True, "manual_gc_interval": 100},
)
LEFT_ON: Mapping[str, Any] = ALWAYS | {
    knob: value for changes in FREE for knob, value in changes.items() if KNOBS[knob].domain.kind != "int"
}


def lost(noise: float, *, expected: float, most: float) -> bool:
    """Whether two bursts that differ by `noise` would hardly tell what is expected of a candidate (log throughput), nor
    the most that it could give."""
    told = INTERVAL * noise
    return expected < HOPE * told and most < told


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """`gain` is the expected log of throughput over the best's, None while nothing runs; `log_step` is of seconds then,
    else over the best's. `deviation` is that of the log step, `noise` what a busy machine adds to two bursts that are
    compared, `worth` the expected improvement in log throughput, and candidates are ranked by `score`."""

    recipe: Recipe
    log_step: float
    deviation: float
    noise: float
    gain: float | None
    fits: float
    worth: float
    score: float

    @property
    def vague(self) -> bool:
        """It would be lost in the noise."""
        most = (self.gain or 0.0) + INTERVAL * self.deviation
        return self.gain is not None and lost(self.noise, expected=self.gain, most=most)

    @property
    def gains(self) -> tuple[float, float, float]:
        """(expected, low, high) as fractions of throughput, with the ends of the 90 % interval of what will be
        measured. Something must run."""
        assert self.gain is not None
        half = INTERVAL * math.hypot(self.deviation, self.noise)
        expected, low, high = (math.expm1(self.gain + sign * half) for sign in (0, -1, 1))
        return expected, low, high


@dataclass(frozen=True, kw_only=True)
class _Scores:
    """Of N candidates, [N] each."""

    log_step: Floats
    deviation: Floats
    gain: Floats
    fits: Floats
    worth: Floats
    score: Floats
    noise: float


def prospects(
    found: Search,
    best: Recipe | None,
    belief: Surrogate,
    tried: Container[str],
    near: Sequence[Move] = (),
    doubts: Sequence[Doubt] = (),
    refusals: Sequence[Refused] = (),
    *,
    asked: float = LIKELY,
) -> Iterator[Prospect]:
    """The best first; none that was tried or is known to be refused, no frozen knob moved, all legal. `best` is None
    while nothing runs, `near` are the single moves around it; `doubts` are of recipes that failed for other reasons
    than memory, `asked` is P(fits) at least."""
    table = found.finals.candidates.take(_short_list(found, belief, asked, doubts, refusals))
    around = [recipe for *_, recipe in _told_apart(best, near, belief)] if best else []
    now = belief.time.closed_form(tabulate([best])) if best else None
    groups = [(table, _scores(table, now, belief, asked, doubts))]
    if around:
        beside = tabulate(around)
        groups.append((beside, _scores(beside, now, belief, asked, doubts)))
    score = np.concatenate([scores.score for _, scores in groups])
    taken = frozenset(table.base.diff(found.base))
    seen: set[str] = set()
    for at in np.argsort(-score, kind="stable"):
        group, row = (0, int(at)) if at < table.count else (1, int(at) - table.count)
        recipe = around[row] if group else _written(found, table, row, taken, doubts)
        if recipe is None or recipe.digest() in seen or recipe.digest() in tried:
            continue
        if any(each.meets(recipe) for each in refusals):
            continue
        seen.add(recipe.digest())
        prospect = _prospect(recipe, groups[group][1], row, runs=best is not None)
        if not prospect.vague:
            yield prospect


def prospect_of(recipe: Recipe, best: Recipe, belief: Surrogate) -> Prospect:
    """What is believed of one recipe beside the best."""
    return _prospect(
        recipe, _scores(tabulate([recipe]), belief.time.closed_form(tabulate([best])), belief, LIKELY), 0, runs=True
    )


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two moves at once: an axis and its option each."""

    axes: tuple[Axis, Axis]
    options: tuple[str, str]
    prospect: Prospect

    def point(self, axes: Sequence[Axis]) -> dict[str, str]:
        moved = dict(zip((axis.name for axis in self.axes), self.options, strict=True))
        return {axis.name: moved.get(axis.name, CURRENT) for axis in axes}


def pairs(
    best: Recipe,
    belief: Surrogate,
    tried: Container[str],
    near: Sequence[Move],
    *,
    least: float,
    asked: float = LIKELY,
    refusals: Sequence[Refused] = (),
) -> list[Pair]:
    """Of the FEW most promising single moves along the axes all pairs that are worth `least`, the best first."""
    single = [move for move in _told_apart(best, near, belief) if not any(each.meets(move[-1]) for each in refusals)]
    if len(single) < 2:
        return []
    now = belief.time.closed_form(tabulate([best]))
    worth = _scores(tabulate([recipe for *_, recipe in single]), now, belief, asked).worth
    few = [single[at] for at in np.argsort(-worth, kind="stable")[:FEW]]
    both = [
        ((one, other), (label, second), derived)
        for (one, label, _), (other, second, _) in combinations(few, 2)
        if one.name != other.name
        and isinstance(derived := derive(best, {**one.options[label], **other.options[second]}), Recipe)
        and derived.digest() not in tried
        and not any(each.meets(derived) for each in refusals)
    ]
    if not both:
        return []
    scores = _scores(tabulate([recipe for *_, recipe in both]), now, belief, asked)
    found = [
        Pair(axes=axes, options=options, prospect=_prospect(recipe, scores, row, runs=True))
        for row, (axes, options, recipe) in enumerate(both)
    ]
    kept = (one for one in found if one.prospect.worth >= least and not one.prospect.vague)
    return sorted(kept, key=lambda one: -one.prospect.worth)


def _told_apart(best: Recipe, single: Sequence[Move], belief: Surrogate) -> list[Move]:
    """The single moves that the belief tells from the best at all: what neither the closed forms nor likeness see would
    seem worth as much as the best is unsure. None that only gives up what costs nothing, or what others gained by."""
    single = [move for move in single if not gives_up(best, move[-1])]
    if not single:
        return []
    table = tabulate([best, *(recipe for *_, recipe in single)])
    where, log_steps = features(table), belief.time.means(table)
    apart = (where[1:] != where[0]).any(axis=1) | (np.abs(log_steps[1:] - log_steps[0]) >= NO_OPINION)
    return [move for move, keep in zip(single, apart, strict=True) if keep]


def gives_up(best: Recipe, recipe: Recipe) -> bool:
    """Whether all that a recipe changes is to leave out what costs nothing or has gained elsewhere, on GPUs."""
    left = (
        gained(best, knob) or (knob in LEFT_ON and LEFT_ON[knob] == was) for knob, (was, _) in best.diff(recipe).items()
    )
    return not best.hardware.is_cpu and all(left)


def _prospect(recipe: Recipe, scores: _Scores, row: int, *, runs: bool) -> Prospect:
    return Prospect(
        recipe=recipe,
        log_step=float(scores.log_step[row]),
        deviation=float(scores.deviation[row]),
        noise=scores.noise,
        gain=float(scores.gain[row]) if runs else None,
        fits=float(scores.fits[row]),
        worth=float(scores.worth[row]),
        score=float(scores.score[row]),
    )


def asked_of_fits(trials: Sequence[Trial]) -> float:
    """P(fits) that a burst needs: more the more proposals have run out of memory, of which the belief was too sure."""
    ran_out = sum(trial.status is Status.OOM and trial.proposal.parent is not None for trial in trials)
    asked: float = 1 - (1 - LIKELY) * WARIER**ran_out
    return asked


def _trust(table: Candidates, doubts: Sequence[Doubt]) -> Floats:
    """[N], less the more of a failed recipe's doubtful knobs a row shares: one of them is why it failed."""
    trust = np.ones(table.count)
    for doubt in doubts:
        shared = sum((table.among(knob, value).astype(float) for knob, value in doubt.items()), np.zeros(()))
        trust = trust * (1 - DOUBTED * shared / len(doubt))
    return trust


def _short_list(
    found: Search, belief: Surrogate, asked: float, doubts: Sequence[Doubt], refusals: Sequence[Refused] = ()
) -> Integers:
    """Rows of the finals that nothing learnt speaks against: the fastest that are likely to fit, the likeliest where
    none is."""
    table = found.finals.candidates
    means, fits = belief.time.means(table) - np.log(_trust(table, doubts)), belief.memory.fits(table)
    open_ones = ~_refused(table, refusals)
    likely = np.flatnonzero((fits >= asked) & open_ones)
    if not len(likely):
        return np.argsort(np.where(open_ones, -fits, np.inf), kind="stable")[:SHORT_LIST]
    return likely[np.argsort(means[likely], kind="stable")[:SHORT_LIST]]


def _refused(table: Candidates, refusals: Sequence[Refused]) -> Any:
    """bool[N]: rows with a cause for which the trainer refused another recipe."""
    found = np.zeros(table.count, dtype=bool)
    for each in refusals:
        rows = np.ones(table.count, dtype=bool)
        for knob, values in each.values.items():
            rows &= table.among(knob, *values)
        found |= rows
    return found


def _scores(
    table: Candidates, now: ClosedForm | None, belief: Surrogate, asked: float, doubts: Sequence[Doubt] = ()
) -> _Scores:
    """`now` is the best, None while nothing runs."""
    fits, noise = belief.memory.fits(table), belief.time.noise
    if now is None:  # what fits surely first, the fastest of it; else the likeliest
        log_step, deviation = belief.time.predict(table)
        unsure = np.where(fits >= SURE, 0.0, np.log(np.maximum(fits, 1e-12)) - 100.0)
        nothing, score = np.zeros_like(log_step), unsure - log_step + np.log(_trust(table, doubts))
        return _Scores(
            log_step=log_step, deviation=deviation, gain=nothing, fits=fits, worth=nothing, score=score, noise=noise
        )
    over, deviation = belief.time.over(belief.time.closed_form(table), now)
    z = -over / deviation
    chance = np.where((fits >= asked) & (z >= -LOSING), fits**CAUTION, 0.0)
    worth = deviation * (norm.pdf(z) + z * norm.cdf(z)) * chance * _trust(table, doubts)
    return _Scores(log_step=over, deviation=deviation, gain=-over, fits=fits, worth=worth, score=worth, noise=noise)


def _written(
    found: Search, table: Candidates, row: int, taken: frozenset[str], doubts: Sequence[Doubt]
) -> Recipe | None:
    """A row as it would run, with what is free; without what it has `taken` along and its layout refuses."""
    recipe = written_out(table.recipe(row))
    for finding in check(recipe) if taken else ():
        if finding.suggestion and taken.issuperset(finding.suggestion):
            recipe = recipe.replace(finding.suggestion)
    if broken(recipe, found.standing):
        return None
    for changes in () if recipe.hardware.is_cpu else FREE:
        if any(doubt.get(knob) == value for doubt in doubts for knob, value in changes.items()):
            continue
        derived = derive(recipe, changes)
        recipe = recipe if isinstance(derived, Refusal) else derived
    return recipe
