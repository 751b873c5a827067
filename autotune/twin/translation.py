"""Translates factors of the closed forms into keys of the simulation, by `translation.csv`. Pure.

Estimate and simulation share no formula; where they differ on the published machine, the factors make up the
difference. So the difference of two factors is translated: the cluster's, and the one learned from the same recipes
simulated on a machine whose keys are known. A row says how these two, a and b, move a key:

- power: key · exp(times · (a − b))
- add: key + times · (exp(a) − exp(b)), in the key's unit
- odds: key · r is a share, r the simulation's rate `of`: its odds · exp(times · (a − b))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainer.engines.simulated.rates import rate_values
from trainer.recipe.machine import Machine
from trainer.recipe.tables import read_table

Theta = Mapping[str, float]
MIN_RATIO, MAX_RATIO = 0.1, 10.0  # bounds of a key over its published value: no measured cluster was further off
SHARE_EPSILON = 1e-3


@dataclass(frozen=True, kw_only=True)
class Row:
    """One factor that moves one key of the simulation; the module describes `how`."""

    key: str
    factor: str
    how: str
    times: float
    of: str
    why: str


@cache
def translation() -> tuple[Row, ...]:
    return tuple(
        Row(
            key=row["key"],
            factor=row["factor"],
            how=row["how"],
            times=float(row["times"]),
            of=row["of"],
            why=row["why"],
        )
        for row in read_table("translation.csv", package="autotune.twin")
    )


def moved_keys(
    keys: Mapping[str, float], ours: Theta, simulated: Theta, learned: Theta | None = None
) -> dict[str, float]:
    """Returns the keys after one translation.

    `ours`: the cluster's factors; `simulated`: those learned on the machine with `keys`; `learned`: share of each
    factor's difference to translate (None: all of it). Keys without a factor in either stay as they are.
    """
    found = dict(keys)
    for row in translation():
        if row.factor in ours or row.factor in simulated:
            theirs = simulated.get(row.factor, 0.0)
            share = 1.0 if learned is None else learned[row.factor]
            wanted = theirs + share * (ours.get(row.factor, 0.0) - theirs)
            value = HOW[row.how](found.get(row.key, default_of(row.key)), wanted, theirs, row)
            found[row.key] = bounded(row.key, value)
    return found


def intervals(
    keys: Mapping[str, float], deviation: Mapping[str, float], *, width: float
) -> dict[str, tuple[float, float]]:
    """Returns the interval of each key if its factors are `width` standard deviations off, combined as independent
    errors."""
    found = {}
    for key, value in keys.items():
        rows = [row for row in translation() if row.key == key and row.factor in deviation]
        ends = [
            sorted(HOW[row.how](value, sign * width * deviation[row.factor], 0.0, row) for sign in (-1, 1))
            for row in rows
        ]
        low, high = (_combined(value, [end[side] for end in ends]) for side in (0, 1))
        found[key] = bounded(key, low), bounded(key, high)
    return found


def _combined(value: float, ends: Sequence[float]) -> float:
    """Returns one end of the interval around `value` if independent errors, whose own ends are `ends`, act together.

    The logs of the errors are added in quadrature; if a value is not positive, the errors themselves.
    """
    if value <= 0 or any(end <= 0 for end in ends):
        return value + math.copysign(math.hypot(*(end - value for end in ends)), sum(ends) - len(ends) * value)
    logs = [math.log(end / value) for end in ends]
    return value * math.exp(math.copysign(math.hypot(*logs), sum(logs)))


def bounded(key: str, value: float) -> float:
    """Returns the value, clipped to the bounds of the key."""
    return min(max(value, _least(key)), _most(key))


def machine_of(keys: Mapping[str, float], *, name: str = "machine", about: str = "") -> Machine:
    """Returns the machine with these keys; all others are as published."""
    data: dict[str, Any] = {"name": name, "about": about}
    for key, value in keys.items():
        section, field = key.split(".")
        data.setdefault(section, {})[field] = value
    return Machine.model_validate(data)


def default_of(key: str) -> float:
    section, name = key.split(".")
    default: float = getattr(getattr(Machine(), section), name)
    return default


def _power(value: float, ours: float, simulated: float, row: Row) -> float:
    return value * math.exp(row.times * (ours - simulated))


def _add(value: float, ours: float, simulated: float, row: Row) -> float:
    return value + row.times * (math.exp(ours) - math.exp(simulated))


def _odds(value: float, ours: float, simulated: float, row: Row) -> float:
    table = rate_values()[row.of]
    share = min(max(table * value, SHARE_EPSILON), 1 - SHARE_EPSILON)
    return 1 / (1 + (1 - share) / share * math.exp(-row.times * (ours - simulated))) / table


HOW: dict[str, Callable[[float, float, float, Row], float]] = {
    "power": _power,
    "add": _add,
    "odds": _odds,
}


def _least(key: str) -> float:
    return 0.0 if default_of(key) == 0 else MIN_RATIO * default_of(key)


def _most(key: str) -> float:
    section, name = key.split(".")
    bounds = type(getattr(Machine(), section)).model_fields[name].metadata
    allowed = [float(bound.le) for bound in bounds if getattr(bound, "le", None) is not None]
    return min([*allowed, MAX_RATIO * (default_of(key) or math.inf)])
