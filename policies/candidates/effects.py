"""What single settings have brought elsewhere: the prediction for a knob that no closed form covers.

`effects.csv` has a row for a knob that was published (sources: ids of benchmarks/data/effects.csv) with the value that
gained, where one did, and the precision, where it gained in one only; and one row for all others, `*`. Published gains
were of machines and versions that are not ours, most of them of several settings at once: the spreads are wide.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Any

from policies.trial import Z_90
from trainer.recipe import Recipe
from trainer.recipe.tables import read_table

OTHERS = "*"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Of moving one knob to `value` (None: anywhere): mean and standard deviation of the gain in log throughput, before
    any burst."""

    value: Any = None
    precision: str | None = None
    gain: float
    spread: float
    evidence: str
    source: str

    @property
    def low(self) -> float:
        """End of the 90 % interval, as a fraction of throughput."""
        return math.expm1(self.gain - Z_90 * self.spread)

    @property
    def high(self) -> float:
        return math.expm1(self.gain + Z_90 * self.spread)

    def expected_improvement(self, *, at_most: float) -> float:
        """Returns the expected improvement of log throughput, where at most `at_most` can come of it."""
        return self._above(0.0) - self._above(max(at_most, 0.0))

    def _above(self, floor: float) -> float:
        """Expected excess over `floor`, where there is one."""
        if math.isinf(floor):
            return 0.0
        z, normal = (self.gain - floor) / self.spread, NormalDist()
        return self.spread * normal.pdf(z) + (self.gain - floor) * normal.cdf(z)


@cache
def effects() -> dict[str, Effect]:
    return {
        row["knob"]: Effect(
            value=json.loads(row["value"]) if row["value"] else None,
            precision=row["precision"] or None,
            gain=float(row["gain"]),
            spread=float(row["spread"]),
            evidence=row["evidence"],
            source=row["source"],
        )
        for row in read_table("effects.csv", package="policies.candidates")
    }


def effect_of(recipe: Recipe, knob: str, to: Any) -> Effect:
    """Of moving the knob from where it is: its own effect towards the value that gained, its reverse away from it, else
    that of all others, as on CPU ranks: nothing was published of them."""
    others, was = effects()[OTHERS], recipe.knob(knob)
    found = _published(recipe, knob)
    if found is None or recipe.hardware.is_cpu:
        return others
    if found.value is None or to == found.value:
        return found
    if not all(isinstance(value, int) for value in (found.value, was, to)):
        return others
    nearer = abs(found.value - was) - abs(found.value - to)
    if nearer == 0:
        return others
    return found if nearer > 0 else replace(found, gain=-found.gain, evidence=f"the other way: {found.evidence}")


def gained(recipe: Recipe, knob: str) -> bool:
    """Whether the recipe has the switch as it gained elsewhere: no burst is paid to see what comes without it."""
    found = _published(recipe, knob)
    if found is None or not (found.value is True or isinstance(found.value, str)):
        return False
    return bool(found.value == recipe.knob(knob))


def _published(recipe: Recipe, knob: str) -> Effect | None:
    """The knob's row, where it holds for the recipe's precision."""
    found = effects().get(knob)
    return found if found is not None and found.precision in (None, recipe.training.precision) else None
