"""Chooses the next burst of a slowdown: the subset that says most about the guilty set, a repeat if that says most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from policies.bisect.answers import Answers, answers
from policies.bisect.posterior import Posterior, as_subset, fit_posterior
from policies.bisect.question import Effect, Question, Seen, Step, Subset, Verdict, log_costs
from policies.bisect.terms import Terms, flags
from policies.constants import constant
from policies.trial import Z_90
from trainer.estimate.candidates import Floats

CONFIDENCE = constant("bisect_confidence")
LEAST_INFORMATION = constant("bisect_least_information")
WEIGHED = 120  # answers that a burst is chosen by
DRAWN = 80  # subsets drawn at random among those considered
GRID = 48  # points over which the density of a burst's cost is summed
WIDE = 4.0  # standard deviations beyond the outermost hypothesis that the points reach
OTHERS = 3  # further guilty sets that a verdict names


def slowdown_step(question: Question, terms: Terms, seen: Sequence[Seen]) -> Step:
    """Returns the verdict after some bursts and the next subset. Pure: the same bursts give the same step."""
    measured = [each for each in seen if each.log_cost is not None]
    subsets = flags([each.subset for each in measured], len(question.guilt))
    costs = [each.log_cost for each in measured if each.log_cost is not None]
    posterior = fit_posterior(terms, subsets, costs, deviation=question.deviation)
    found = answers(posterior, question.least)
    verdict = _verdict(question, found, seen)
    if verdict.confident:
        return Step(verdict=verdict, ask=None)
    if not verdict.guilty and verdict.probability >= CONFIDENCE:
        return Step(
            verdict=verdict, ask=min((frozenset[int](), question.all), key=lambda end: len(log_costs(seen, end)))
        )
    return Step(verdict=verdict, ask=_most_telling(question, found, seen))


def _verdict(question: Question, found: Answers, seen: Sequence[Seen]) -> Verdict:
    posterior = found.posterior
    total = _total(question, posterior, seen)
    (guilty, probability), *others = found.by_set.items()
    row = int(found.rows[found.sets.index(guilty)])  # the most probable hypothesis of the set
    effects = list(_effects(posterior, row))
    return Verdict(
        culprits=tuple(each for each in effects if (each.log_cost or 0.0) > 0 and guilty.issuperset(each.members)),
        helpers=tuple(each for each in effects if (each.log_cost or 0.0) <= -question.least),
        probability=probability,
        confident=probability >= CONFIDENCE and (bool(guilty) or (total.high or 0.0) < question.least),
        others=tuple(others[:OTHERS]),
        total=total,
        deviation=posterior.deviation,
    )


def _effects(posterior: Posterior, row: int) -> Iterator[Effect]:
    """Yields the effects of a hypothesis, the largest first."""
    mean, covariance = posterior.effects()
    found = []
    for at, term in enumerate(posterior.hypotheses[row]):
        half = Z_90 * float(np.sqrt(max(covariance[row, at, at], 0.0)))
        cost = float(mean[row, at])
        members = posterior.terms.sets[term]
        found.append(Effect(members=members, log_cost=cost, low=cost - half, high=cost + half))
    yield from sorted(found, key=lambda each: -(each.log_cost or 0.0))


def _total(question: Question, posterior: Posterior, seen: Sequence[Seen]) -> Effect:
    """Returns the difference between the two ends, from their own bursts alone."""
    ends = [log_costs(seen, end) for end in (frozenset(), question.all)]
    cost = float(np.mean(ends[1]) - np.mean(ends[0]))
    half = Z_90 * posterior.deviation * float(np.sqrt(sum(1 / len(end) for end in ends)))
    return Effect(members=tuple(sorted(question.all)), log_cost=cost, low=cost - half, high=cost + half)


def _most_telling(question: Question, found: Answers, seen: Sequence[Seen]) -> Subset | None:
    """Returns the legal subset whose burst says most about the guilty set; None if none says enough."""
    failed = {each.subset for each in seen if each.log_cost is None}
    considered = [each for each in _considered(question, found) if each not in failed]
    information = _information(question, found, considered)
    if not considered or information.max() < LEAST_INFORMATION:
        return None
    return considered[int(information.argmax())]


def _considered(question: Question, answers: Answers) -> list[Subset]:
    """Returns subsets worth considering: cuts of the differences by suspicion, drawn ones, those that check the first
    guilty sets, and those that have been run."""
    count, posterior = len(question.guilt), answers.posterior
    suspicion = np.zeros(count)
    for each, chance in zip(posterior.hypotheses, posterior.probability, strict=True):
        suspicion[list(as_subset(posterior.terms, each))] += chance
    order = np.argsort(-suspicion, kind="stable").tolist()
    found = [frozenset(order[:cut]) for cut in range(count + 1)]
    found += [frozenset(np.flatnonzero(row).tolist()) for row in posterior.subsets]
    for guilty in islice(answers.by_set, WEIGHED // 4):
        found += [guilty, *(guilty - {member} for member in guilty)]
    dice = np.random.default_rng(len(posterior.costs))
    suspects = suspicion >= min(0.01, float(np.sort(suspicion)[-min(4, count)]))
    for drawn in range(DRAWN):
        inside = dice.random(count) < dice.choice([0.3, 0.5, 0.7])
        rest = (False, True, inside)[drawn % 3]
        found.append(frozenset(np.flatnonzero(np.where(suspects, inside, rest)).tolist()))
    found += [question.all - each for each in found]
    closed = (question.closed(each) for each in dict.fromkeys(found))
    return list(dict.fromkeys(each for each in closed if each is not None))


def _information(question: Question, answers: Answers, subsets: Sequence[Subset]) -> Floats:
    """Returns the mutual information [C], nats, of a burst of each subset and the guilty set."""
    if not subsets:
        return np.zeros(0)
    mean, deviation = answers.predicted(flags(subsets, len(question.guilt)), WEIGHED)
    chance = answers.probability[:WEIGHED] / answers.probability[:WEIGHED].sum()
    sets = answers.sets[:WEIGHED]
    numbers = {each: number for number, each in enumerate(dict.fromkeys(sets))}
    member = np.zeros((len(numbers), len(sets)))
    member[[numbers[each] for each in sets], np.arange(len(sets))] = chance
    low, high = (mean - WIDE * deviation).min(axis=0), (mean + WIDE * deviation).max(axis=0)
    points = low + (high - low) * np.linspace(0, 1, GRID)[:, None]  # [G, C]
    apart = (points[:, None, :] - mean) / deviation  # [G, H, C]
    density = np.exp(-0.5 * apart**2) / deviation
    of_sets = np.einsum("sh,ghc->gsc", member, density) * (high - low) / (GRID - 1) / np.sqrt(2 * np.pi)
    of_sets /= of_sets.sum(axis=(0, 1))  # joint probability of point and set
    joint = of_sets * np.log(np.maximum(of_sets, 1e-300))
    at_point, of_set = of_sets.sum(axis=1), of_sets.sum(axis=0)
    information: Floats = joint.sum(axis=(0, 1)) - sum(
        (each * np.log(np.maximum(each, 1e-300))).sum(axis=0) for each in (at_point, of_set)
    )
    return information
