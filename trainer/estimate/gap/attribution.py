"""Divides the difference between two settings among the changes between them, independently of their order.

A change's share is its Shapley value: what it saves, averaged over all orders in which the changes can be made. Shares
add up exactly to the difference. With more than EXACT changes, a fixed set of orders and their reverses is averaged.

Shapes: C changes, R subsets of them (flags: made or not), K sets of constants.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from trainer.estimate.candidates import Flags, Floats

EXACT = 8  # changes up to which every subset is evaluated
ORDERS = 40  # random orders of more than EXACT changes, each taken forwards and backwards
SEED = 26

Cost = Callable[[Flags], Floats]  # [R, C] → [K, R]


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """`shares`: [K, C], seconds that each change saves.

    `alone`: [K, C], seconds that it saves as the only change. `together`: [C, C] for the first set of constants,
    seconds that two changes save together beyond the sum of each alone.
    """

    shares: Floats
    alone: Floats
    together: Floats


def attributed(cost: Cost, count: int) -> Attribution:
    """Divides cost(none) - cost(all) among `count` changes."""
    orders = None if count <= EXACT else _orders(count)
    subsets = _every(count) if orders is None else _prefixes(orders)
    pairs = [frozenset(pair) for size in (1, 2) for pair in combinations(range(count), size)]
    rows = list(dict.fromkeys([frozenset[int](), *subsets, *pairs]))
    costs = cost(np.array([[at in row for at in range(count)] for row in rows]).reshape(len(rows), count))
    saved = {row: costs[..., 0] - costs[..., at] for at, row in enumerate(rows)}
    shares = _exact(saved, count) if orders is None else _averaged(saved, orders)
    alone = np.stack([saved[frozenset({at})] for at in range(count)], axis=-1) if count else np.zeros((len(costs), 0))
    together = np.zeros((count, count))
    for one, other in combinations(range(count), 2):
        both = saved[frozenset({one, other})] - alone[:, one] - alone[:, other]
        together[one, other] = together[other, one] = both[0]
    return Attribution(shares=shares, alone=alone, together=together)


def _every(count: int) -> list[frozenset[int]]:
    return [frozenset(row) for size in range(count + 1) for row in combinations(range(count), size)]


def _orders(count: int) -> list[list[int]]:
    rng, found = random.Random(SEED), list[list[int]]()
    for _ in range(ORDERS):
        order = rng.sample(range(count), count)
        found += [order, order[::-1]]
    return found


def _prefixes(orders: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    return [frozenset(order[:length]) for order in orders for length in range(len(order) + 1)]


def _exact(saved: dict[frozenset[int], Floats], count: int) -> Floats:
    shares = np.zeros((len(saved[frozenset()]), count))
    for row in _every(count):
        for at in row:
            weight = math.factorial(len(row) - 1) * math.factorial(count - len(row)) / math.factorial(count)
            shares[:, at] += weight * (saved[row] - saved[row - {at}])
    return shares


def _averaged(saved: dict[frozenset[int], Floats], orders: Sequence[Sequence[int]]) -> Floats:
    shares = np.zeros((len(saved[frozenset()]), len(orders[0])))
    for order in orders:
        for length, at in enumerate(order):
            shares[:, at] += saved[frozenset(order[: length + 1])] - saved[frozenset(order[:length])]
    return shares / len(orders)
