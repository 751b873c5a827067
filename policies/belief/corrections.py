"""What a study has taught of its cluster, factor by factor, in units: before any burst, and now with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from policies.belief.factors import MOVES, Factor, factors
from policies.belief.time import INTERVAL, Posterior
from trainer.estimate.time.constants import constant_table, constants
from trainer.recipe import Recipe
from trainer.recipe.hardware import Hardware

TAUGHT = 0.8  # of a factor's spread left: with more, no burst has said much
ARCHITECTURES = ("hopper", "blackwell")
FABRICS = {True: "nvlink72", False: "nvlink8"}  # by whether the domain is wider than a node of eight


@dataclass(frozen=True, kw_only=True)
class Correction:
    """One constant: its value by the tables, now, and the 90 % interval, in `unit`."""

    factor: str
    words: str
    unit: str
    before: float
    after: float
    low: float
    high: float

    @property
    def surprise(self) -> float:
        """How far it has moved, as a log."""
        return abs(math.log(max(self.after, 1e-9) / max(self.before, 1e-9))) if self.before else math.inf


def corrections(found: Posterior, recipe: Recipe) -> list[Correction]:
    """The most surprising first; none of what no burst has touched."""
    spread = np.sqrt(np.diag(found.covariance))
    told = [
        _correction(factor, recipe, float(at), float(left))
        for factor, at, left in zip(factors(), found.mean, spread, strict=True)
        if left < TAUGHT * factor.spread
    ]
    return sorted((one for one in told if one), key=lambda one: -one.surprise)


def _correction(factor: Factor, recipe: Recipe, at: float, left: float) -> Correction | None:
    shown = _shown(factor, recipe.hardware, recipe.training.precision)
    if shown is None:
        return None
    name, rate, unit = shown
    value, move = constants()[name] * rate, MOVES[factor.scale]
    low, after, high = (move(constants()[name], at + sign * INTERVAL * left) * rate for sign in (-1, 0, 1))
    return Correction(factor=factor.name, words=factor.words, unit=unit, before=value, after=after, low=low, high=high)


def _shown(factor: Factor, hardware: Hardware, precision: str) -> tuple[str, float, str] | None:
    """(the constant that stands for a factor here, what it is multiplied by, its unit then)."""
    fabric = FABRICS[hardware.nvlink_domain_gpus > 8]
    others = {*FABRICS.values(), *ARCHITECTURES} - {fabric, hardware.architecture}
    here = [name for name in factor.constants if not others & set(name.split("."))]
    here.sort(key=lambda name: (f".{precision}" not in name, ".collective." not in name))
    if not here:
        return None
    name = here[0]
    if name.startswith("link_share."):
        near = hardware.nvlink_gb_s, f"GB/s of {hardware.nvlink_gb_s:g}"
        gbit = hardware.scaleout_gbit_s or 0.0
        far = gbit / 8, f"GB/s of {gbit / 8:g}"
        rate, unit = far if name.endswith("network") else near
        return (name, rate, unit) if rate else None
    return name, 1.0, constant_table()[name].unit
