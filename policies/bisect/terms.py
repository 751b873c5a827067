"""The terms that a slowdown is modelled with: one difference, or two or three that act only together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from policies.bisect.question import Subset
from policies.constants import constant
from trainer.estimate.candidates import Flags, Floats

EXPECTED = {2: constant("bisect_expected_pairs"), 3: constant("bisect_expected_triples")}  # terms, by their size
MAX_DIFFERENCES_FOR = {2: 120, 3: 32}  # by size of a term: with more differences there are too many such terms


@dataclass(frozen=True, kw_only=True)
class Terms:
    """T terms of n differences: `inside` [T, n] is 1 for the members of a term, `log_odds` [T] its odds before any
    burst."""

    sets: tuple[tuple[int, ...], ...]
    inside: Floats
    log_odds: Floats

    def columns(self, subsets: Flags) -> Floats:
        """Returns [M, T]: 1 where a subset, a row of [M, n], has every member of a term."""
        found: Floats = (subsets @ self.inside.T == self.inside.sum(axis=1)).astype(float)
        return found


def terms_of(guilt: Sequence[float]) -> Terms:
    """Returns the terms of differences, given each difference's probability of guilt: every difference, and pairs and
    triples unless there are too many (MAX_DIFFERENCES_FOR)."""
    count = len(guilt)
    sizes = [1, *(size for size, most in MAX_DIFFERENCES_FOR.items() if size <= count <= most)]
    sets = [members for size in sizes for members in combinations(range(count), size)]
    inside = np.zeros((len(sets), count))
    for row, members in enumerate(sets):
        inside[row, list(members)] = 1.0
    chances = [guilt[members[0]] if len(members) == 1 else _chance(len(members), count) for members in sets]
    return Terms(sets=tuple(sets), inside=inside, log_odds=np.log(chances) - np.log1p(-np.array(chances)))


def _chance(size: int, count: int) -> float:
    """Returns the prior probability of one term of `size` out of `count` differences."""
    return min(EXPECTED[size] / comb(count, size), 0.5)


def flags(subsets: Sequence[Subset], count: int) -> Flags:
    """Returns subsets as rows of bool[M, n]."""
    found = np.zeros((len(subsets), count), dtype=bool)
    for row, subset in enumerate(subsets):
        found[row, list(subset)] = True
    return found
