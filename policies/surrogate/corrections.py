"""The constants that a study's factors moved: by the tables, learned, and the learned one's 90 % interval, in the
constant's unit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from policies.constants import constant
from policies.surrogate.factors import MOVES, Factor, factors
from policies.surrogate.time import TimeSurrogate
from policies.trial import Z_90
from trainer.estimate.time.constants import constant_table, constants
from trainer.measured.architectures import fitted_architectures
from trainer.recipe import Recipe
from trainer.recipe.hardware import Hardware

REPORTED_SPREAD = constant("reported_spread")
FABRICS = ("nvlink8", "nvlink72")


@dataclass(frozen=True, kw_only=True)
class Correction:
    """One constant: its value in the tables (`before`), its learned value (`after`) and the 90 % interval, all in
    `unit`."""

    factor: str
    words: str
    unit: str
    before: float
    after: float
    low: float
    high: float

    @property
    def surprise(self) -> float:
        """Returns the absolute log ratio of the learned value to the table's."""
        return abs(math.log(max(self.after, 1e-9) / max(self.before, 1e-9))) if self.before else math.inf


def corrections(found: TimeSurrogate, recipe: Recipe) -> list[Correction]:
    """Returns the learned factors, the largest shift first. Leaves out those whose spread bursts have hardly narrowed
    (REPORTED_SPREAD), and those that move no constant of this hardware."""
    spread = np.sqrt(np.diag(found.covariance))
    learned = [
        _correction(factor, recipe, float(at), float(left))
        for factor, at, left in zip(factors(), found.mean, spread, strict=True)
        if left < REPORTED_SPREAD * factor.spread
    ]
    return sorted((one for one in learned if one), key=lambda one: -one.surprise)


def _correction(factor: Factor, recipe: Recipe, at: float, left: float) -> Correction | None:
    shown = _shown(factor, recipe.hardware, recipe.training.precision)
    if shown is None:
        return None
    name, rate, unit = shown
    value, move = constants()[name] * rate, MOVES[factor.scale]
    low, after, high = (move(constants()[name], at + sign * Z_90 * left) * rate for sign in (-1, 0, 1))
    return Correction(factor=factor.name, words=factor.words, unit=unit, before=value, after=after, low=low, high=high)


def _shown(factor: Factor, hardware: Hardware, precision: str) -> tuple[str, float, str] | None:
    """Returns (the constant that represents a factor on this hardware, its multiplier for display, the unit of the
    product); None if it moves none here."""
    others = {*FABRICS, *fitted_architectures()} - {hardware.nvlink_fabric, hardware.fitted_as}
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
