"""The factors on the constants of the step-time model that bursts calibrate; one per row of `factors.csv`.

A factor is a number θ with prior mean 0 and prior standard deviation `spread`. It moves its constants by their scale:
on a log scale a constant is multiplied by exp(θ), on a logit scale a share stays between 0 and 1, on the scale of an
excess what a ratio has over 1 is multiplied by exp(θ), and on the plain scale θ is added, to no less than 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache

from trainer.estimate.time.constants import constants
from trainer.recipe.hardware import Hardware
from trainer.recipe.tables import read_table

SHARE_EPSILON = 1e-4  # least distance of a share on the logit scale from 0 and 1


class Scale(StrEnum):
    LOG = "log"
    LOGIT = "logit"
    EXCESS = "excess"
    PLAIN = "plain"


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One factor: the `constants` that it moves, and its prior standard deviation `spread`."""

    name: str
    constants: tuple[str, ...]
    spread: float
    scale: Scale
    words: str

    def acts_on(self, hardware: Hardware) -> bool:
        """Returns whether the step time on this hardware may depend on any of its constants: on GPUs not on those of
        CPU ranks."""
        return hardware.is_cpu or not all(name.startswith("cpu_") for name in self.constants)


@cache
def factors() -> tuple[Factor, ...]:
    """Returns the factors in the table's order.

    In a factor's constants, a pattern that ends in a dot matches every name with that prefix.
    """
    return tuple(
        Factor(
            name=row["name"],
            constants=tuple(name for pattern in row["constants"].split() for name in _named(pattern)),
            spread=float(row["spread"]),
            scale=Scale(row["scale"]),
            words=row["words"],
        )
        for row in read_table("factors.csv", package="policies.surrogate")
    )


def _named(pattern: str) -> list[str]:
    return [name for name in constants() if fnmatchcase(name, f"{pattern}*" if pattern.endswith(".") else pattern)]


def move_constants(theta: Mapping[str, float]) -> dict[str, float]:
    """Returns the new values of the constants that the factors at `theta` move, by name."""
    moved = dict.fromkeys(name for factor in factors() if theta.get(factor.name) for name in factor.constants)
    return {name: _value_at(name, theta) for name in moved}


def move_constants_of(factor: str, theta: Mapping[str, float]) -> dict[str, float]:
    """Returns the new values of the constants that this factor moves, by name, with all factors at `theta`."""
    return {name: _value_at(name, theta) for name in _by_name()[factor].constants}


def _value_at(constant: str, theta: Mapping[str, float]) -> float:
    value = constants()[constant]
    for factor in _movers()[constant]:
        if at := theta.get(factor.name, 0.0):
            value = MOVES[factor.scale](value, at)
    return value


@cache
def _by_name() -> dict[str, Factor]:
    return {factor.name: factor for factor in factors()}


@cache
def _movers() -> dict[str, list[Factor]]:
    """Returns the factors that move each constant, by the constant's name."""
    movers: dict[str, list[Factor]] = {}
    for factor in factors():
        for name in factor.constants:
            movers.setdefault(name, []).append(factor)
    return movers


def _logit_moved(share: float, at: float) -> float:
    inside = min(max(share, SHARE_EPSILON), 1 - SHARE_EPSILON)
    return 1 / (1 + (1 - inside) / inside * math.exp(-at))


MOVES: dict[Scale, Callable[[float, float], float]] = {
    Scale.LOG: lambda value, at: value * math.exp(at),
    Scale.LOGIT: _logit_moved,
    Scale.EXCESS: lambda ratio, at: 1 + (ratio - 1) * math.exp(at),
    Scale.PLAIN: lambda value, at: max(value + at, 0.0),
}
