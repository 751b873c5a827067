"""The question that bursts answer, and the values of the answer.

Recipe A is the good end, B the bad one; a subset is the set of differences that a recipe takes from B, by number. A's
subset is empty, B's has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from policies.constants import constant
from policies.noise import MIN_HALF_SPREAD
from policies.trial import Z_90

Subset = frozenset[int]
MIN_EFFECT = constant("bisect_least_effect")


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The result of one burst of a subset: the log of its median cost per token, or the `symptom` of its failure."""

    subset: Subset
    log_cost: float | None = None
    symptom: str | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """A bisection of `len(guilt)` differences.

    `guilt` is the probability, before any burst, that a difference costs at least `least` (a log ratio of cost);
    `deviation` the relative standard deviation that the steps of bursts suggest, `least_deviation` that of bursts on a
    quiet machine; `legal` returns whether a subset may be run.
    """

    guilt: tuple[float, ...]
    least: float = MIN_EFFECT
    deviation: float
    least_deviation: float = MIN_HALF_SPREAD
    legal: Callable[[Subset], bool] = lambda subset: True

    @property
    def ends(self) -> tuple[Subset, Subset]:
        """Returns the subsets of A and B."""
        return frozenset(), self.all

    def closed(self, subset: Subset) -> Subset | None:
        """Returns the subset with the differences that the rules require with its members; None if that is still not
        legal."""
        found = self.with_needed(subset)
        return found if self.legal(found) else None

    def with_needed(self, subset: Subset) -> Subset:
        """Returns the subset with the differences that the rules require with its members, as far as they show in
        pairs."""
        found, before = subset, None
        while found != before:
            before, found = found, found.union(*(self._needs[each] for each in found))
        return found

    @cached_property
    def _needs(self) -> tuple[Subset, ...]:
        """Returns the differences that each one requires: without them it is legal neither alone nor with all the
        others."""
        alone = [_needed_by(each, self.legal, self.all) for each in sorted(self.all)]
        for other in sorted(self.all):
            if not self.legal(self.all - {other}):
                needing = (each for each in sorted(self.all - {other}) if self.legal(self.all - {each, other}))
                for each in needing:
                    alone[each] |= {other}
        return tuple(alone)

    @property
    def all(self) -> Subset:
        return frozenset(range(len(self.guilt)))


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of differences that act only together (or of a single one), with its 90 % interval, as log ratios of
    cost. The figures are None for differences that cause a failure, which has no cost."""

    members: tuple[int, ...]
    log_cost: float | None = None
    low: float | None = None
    high: float | None = None


def effect_of(members: tuple[int, ...], log_cost: float, deviation: float) -> Effect:
    """Returns an effect with its 90 % interval."""
    half = Z_90 * deviation
    return Effect(members=members, log_cost=log_cost, low=log_cost - half, high=log_cost + half)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a bisection so far.

    `culprits` are the guilty effects, the largest first, `helpers` those by which B is faster. `probability` is the
    probability that `guilty` is the guilty set; `confident` is true if it is high enough to stop. `others` are the next
    most probable sets, with their probabilities. `symptom`: None for a slowdown. `total` is the effect of all
    differences together, `rest` that of those that are neither culprits nor helpers.
    """

    culprits: tuple[Effect, ...] = ()
    helpers: tuple[Effect, ...] = ()
    probability: float = 0.0
    confident: bool = False
    others: tuple[tuple[Subset, float], ...] = ()
    symptom: str | None = None
    total: Effect | None = None
    rest: Effect | None = None
    deviation: float | None = None  # relative standard deviation of a burst, by the bursts so far

    @property
    def guilty(self) -> Subset:
        return frozenset(member for culprit in self.culprits for member in culprit.members)


@dataclass(frozen=True, kw_only=True)
class BisectStep:
    """The verdict after some bursts, and the subset to run next: None if the verdict is final."""

    verdict: Verdict
    next_subset: Subset | None


def _needed_by(each: int, legal: Callable[[Subset], bool], everything: Subset) -> Subset:
    """Returns the first difference whose addition makes the difference `each` legal; empty if `each` is legal alone or
    requires several."""
    if legal(frozenset({each})):
        return frozenset()
    found = (other for other in sorted(everything - {each}) if legal(frozenset({each, other})))
    return frozenset(list(found)[:1])


def log_costs(seen: Sequence[Observation], subset: Subset) -> list[float]:
    """Returns the measured log costs of a subset, by burst."""
    return [each.log_cost for each in seen if each.subset == subset and each.log_cost is not None]
