"""Chooses the next burst of a slowdown: the subset whose result carries most information about the guilty set, new or
repeated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from policies.bisect.posterior import Posterior, as_subset, fit_posterior
from policies.bisect.question import BisectStep, Effect, Observation, Question, Subset, Verdict, effect_of, log_costs
from policies.bisect.terms import Terms, flags
from policies.constants import constant
from policies.trial import Z_90
from trainer.estimate.candidates import Floats

CONFIDENCE = constant("bisect_confidence")
MIN_INFORMATION = constant("bisect_least_information")
HIDING_NOISE = 3.0  # times `least`: if steps suggest more noise than this, the ends are repeated first (judged)
REPEATS = 2  # bursts of each end in that case, and before a verdict that B is not slower
UNRESOLVED_DEVIATION = 4.0  # times `least`: an effect with a larger deviation counts as not measured yet (judged)
TOP_HYPOTHESES = 120  # most probable hypotheses, used to choose the next burst
RANDOM_SUBSETS = 80  # subsets drawn at random among those considered
GRID_POINTS = 48  # points over which the density of a burst's cost is summed
GRID_MARGIN_SIGMAS = 4.0  # standard deviations by which the points extend beyond the outermost hypothesis
MAX_OTHERS = 3  # further guilty sets that a verdict names


def slowdown_step(question: Question, terms: Terms, seen: Sequence[Observation]) -> BisectStep:
    """Returns the verdict after some bursts and the next subset. Pure: the same bursts give the same step.

    If no subset carries enough information, the two ends are repeated: as long as bursts are left, the answer is not
    final.
    """
    measured = [each for each in seen if each.log_cost is not None]
    subsets = flags([each.subset for each in measured], len(question.guilt))
    costs = [each.log_cost for each in measured if each.log_cost is not None]
    deviation, least = question.deviation, question.least_deviation
    posterior = fit_posterior(terms, subsets, costs, deviation=deviation, least_deviation=least)
    verdict = _verdict(question, posterior, seen)
    if verdict.confident:
        return BisectStep(verdict=verdict, next_subset=None)
    ask = _most_informative(question, posterior, seen)
    unclear = ask is None or (not verdict.guilty and verdict.probability >= CONFIDENCE)
    if unclear or _noise_is_unmeasured(question, seen):
        ask = _less_measured(question, seen)
    return BisectStep(verdict=verdict, next_subset=ask)


def _noise_is_unmeasured(question: Question, seen: Sequence[Observation]) -> bool:
    """Returns whether the steps suggest noise that hides the least effect, and repeats of both ends have not measured
    the noise yet."""
    return question.deviation > HIDING_NOISE * question.least and not _ends_repeated(question, seen)


def _less_measured(question: Question, seen: Sequence[Observation]) -> Subset:
    """Returns the end (A or B) with fewer bursts; if both have as many, the one that ran last.

    Repeats are interleaved, A B B A, so that a drift of the machine cancels.
    """
    ends = [each.subset for each in seen if each.subset in question.ends]
    return min(reversed(ends), key=ends.count)


def _guilty(question: Question, posterior: Posterior) -> list[Subset]:
    """Returns the guilty set of each hypothesis: the members of its terms that cost at least `least`.

    Terms with a small positive effect that no burst resolves count too, since the mean of an unresolved effect is near
    zero.
    """
    effects, covariance = posterior.effects()
    unresolved = np.diagonal(covariance, axis1=1, axis2=2) > (UNRESOLVED_DEVIATION * question.least) ** 2
    costs = (effects >= question.least) | ((effects > 0) & unresolved)
    return [
        as_subset(posterior.terms, [term for term, cost in zip(each, row, strict=False) if cost])
        for each, row in zip(posterior.hypotheses, costs.tolist(), strict=True)
    ]


def _by_set(sets: Sequence[Subset], probability: Floats) -> dict[Subset, float]:
    """Returns the probability of each guilty set, the largest first."""
    found: dict[Subset, float] = {}
    for each, chance in zip(sets, probability.tolist(), strict=True):
        found[each] = found.get(each, 0.0) + chance
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _verdict(question: Question, posterior: Posterior, seen: Sequence[Observation]) -> Verdict:
    sets = _guilty(question, posterior)
    total = _total(question, posterior, seen)
    (guilty, probability), *others = _by_set(sets, posterior.probability).items()
    row = sets.index(guilty)  # the most probable hypothesis of the set
    effects = list(_effects(posterior, row))
    helpers = tuple(each for each in effects if _helps(posterior, each.members, question.least))
    rest = _rest(question, posterior, guilty.union(*(each.members for each in helpers)))
    explained = rest is None or (rest.low or 0.0) < question.least
    measured = explained and not _noise_is_unmeasured(question, seen)
    answered = bool(guilty) or _is_not_slower(question, posterior, seen)
    return Verdict(
        culprits=tuple(each for each in effects if (each.log_cost or 0.0) > 0 and guilty.issuperset(each.members)),
        helpers=helpers,
        probability=probability,
        confident=probability >= CONFIDENCE and measured and answered,
        others=tuple(others[:MAX_OTHERS]),
        total=total,
        rest=rest,
        deviation=posterior.deviation,
    )


def _effects(posterior: Posterior, row: int) -> Iterator[Effect]:
    """Yields the effects of a hypothesis, the largest first."""
    mean, covariance = posterior.effects()
    deviation = np.sqrt(np.maximum(np.diagonal(covariance[row]), 0.0))
    found = [
        effect_of(posterior.terms.sets[term], float(mean[row, at]), float(deviation[at]))
        for at, term in enumerate(posterior.hypotheses[row])
    ]
    yield from sorted(found, key=lambda each: -(each.log_cost or 0.0))


def _helps(posterior: Posterior, members: tuple[int, ...], least: float) -> bool:
    """Returns whether B is faster by a term with the confidence that a culprit needs."""
    mean, _ = posterior.effects()
    helping = [
        any(posterior.terms.sets[term] == members and cost <= -least for term, cost in zip(each, row, strict=False))
        for each, row in zip(posterior.hypotheses, mean.tolist(), strict=True)
    ]
    return float(posterior.probability[helping].sum()) >= CONFIDENCE


def _rest(question: Question, posterior: Posterior, named: Subset) -> Effect | None:
    """Returns the joint effect of the differences that are not named; None if all are."""
    rest = question.all - named
    if not rest:
        return None
    cost, deviation = posterior.cost(flags([rest], len(question.guilt)))
    return effect_of(tuple(sorted(rest)), float(cost[0]), float(deviation[0]))


def _total(question: Question, posterior: Posterior, seen: Sequence[Observation]) -> Effect:
    """Returns the difference between the two ends, from their own bursts alone; their noise is not taken as known."""
    cost, bursts = _between_ends(question, seen)
    return effect_of(tuple(sorted(question.all)), cost, posterior.noise_quantile(0.95) * math.sqrt(bursts) / Z_90)


def _is_not_slower(question: Question, posterior: Posterior, seen: Sequence[Observation]) -> bool:
    """Returns whether B is not slower by `least`, which only repeats of both ends can show."""
    cost, bursts = _between_ends(question, seen)
    high = cost + posterior.noise_quantile(CONFIDENCE) * math.sqrt(bursts)
    return high < question.least and _ends_repeated(question, seen)


def _between_ends(question: Question, seen: Sequence[Observation]) -> tuple[float, float]:
    """Returns the mean log cost of B over A, and its variance as a multiple of that of a burst."""
    a, b = (log_costs(seen, end) for end in question.ends)
    return float(np.mean(b) - np.mean(a)), 1 / len(a) + 1 / len(b)


def _ends_repeated(question: Question, seen: Sequence[Observation]) -> bool:
    return all(len(log_costs(seen, end)) >= REPEATS for end in question.ends)


def _most_informative(question: Question, posterior: Posterior, seen: Sequence[Observation]) -> Subset | None:
    """Returns the legal subset whose burst carries most information about the guilty set; None if none carries
    enough."""
    failed = {each.subset for each in seen if each.log_cost is None}
    considered = [each for each in _considered(question, posterior) if each not in failed]
    information = _information(question, posterior, considered)
    if not considered or information.max() < MIN_INFORMATION:
        return None
    return considered[int(information.argmax())]


def _considered(question: Question, posterior: Posterior) -> list[Subset]:
    """Returns subsets worth considering: differences by descending guilt (each prefix), random ones, those that check
    the most probable guilty sets, those that have been run, and the complements of all. Adds the differences that the
    rules require; leaves out what is still not legal."""
    count = len(question.guilt)
    suspicion = np.zeros(count)
    for each, chance in zip(posterior.hypotheses, posterior.probability, strict=True):
        suspicion[list(as_subset(posterior.terms, each))] += chance
    order = np.argsort(-suspicion, kind="stable").tolist()
    found = [frozenset(order[:cut]) for cut in range(count + 1)]
    found += [frozenset(np.flatnonzero(row).tolist()) for row in posterior.subsets]
    first = _by_set(_guilty(question, posterior), posterior.probability)
    for guilty in islice(first, TOP_HYPOTHESES // 4):
        found += [guilty, *(guilty - {member} for member in guilty)]
    rng = np.random.default_rng(len(posterior.costs))
    suspects = suspicion >= min(0.01, float(np.sort(suspicion)[-min(4, count)]))
    for drawn in range(RANDOM_SUBSETS):
        inside = rng.random(count) < rng.choice([0.3, 0.5, 0.7])
        rest = (False, True, inside)[drawn % 3]
        found.append(frozenset(np.flatnonzero(np.where(suspects, inside, rest)).tolist()))
    found += [question.all - each for each in found]
    closed = (question.closed(each) for each in dict.fromkeys(found))
    return list(dict.fromkeys(each for each in closed if each is not None))


def _information(question: Question, posterior: Posterior, subsets: Sequence[Subset]) -> Floats:
    """Returns the mutual information [C], in nats, between the result of a burst of each subset and the guilty set."""
    if not subsets:
        return np.zeros(0)
    mean, deviation = (each[:TOP_HYPOTHESES] for each in posterior.predicted(flags(subsets, len(question.guilt))))
    chance = posterior.probability[:TOP_HYPOTHESES] / posterior.probability[:TOP_HYPOTHESES].sum()
    sets = _guilty(question, posterior)[:TOP_HYPOTHESES]
    numbers = {each: number for number, each in enumerate(dict.fromkeys(sets))}
    member = np.zeros((len(numbers), len(sets)))
    member[[numbers[each] for each in sets], np.arange(len(sets))] = chance
    low, high = (mean - GRID_MARGIN_SIGMAS * deviation).min(axis=0), (mean + GRID_MARGIN_SIGMAS * deviation).max(axis=0)
    points = low + (high - low) * np.linspace(0, 1, GRID_POINTS)[:, None]  # [G, C]
    apart = (points[:, None, :] - mean) / deviation  # [G, H, C]
    density = np.exp(-0.5 * apart**2) / deviation
    of_sets = np.einsum("sh,ghc->gsc", member, density) * (high - low) / (GRID_POINTS - 1) / np.sqrt(2 * np.pi)
    of_sets /= of_sets.sum(axis=(0, 1))  # joint probability of point and set
    joint = of_sets * np.log(np.maximum(of_sets, 1e-300))
    at_point, of_set = of_sets.sum(axis=1), of_sets.sum(axis=0)
    information: Floats = joint.sum(axis=(0, 1)) - sum(
        (each * np.log(np.maximum(each, 1e-300))).sum(axis=0) for each in (at_point, of_set)
    )
    return information
