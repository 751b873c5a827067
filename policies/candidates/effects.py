"""Published effects of single settings: the prediction for a knob that no closed form covers.

`effects.csv` has a row for each knob with a published effect (sources: ids of benchmarks/data/effects.csv): the value
that gained, if one did, and the precision, if it gained in one only. The row `*` is for all other knobs. Published
gains were measured on other machines and versions, most of them of several settings at once: the spreads are wide.
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

UNLISTED = "*"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The prior effect of moving one knob to `value` (None: to any value).

    `gain` and `spread` are the mean and the standard deviation of the log ratio of throughput.
    """

    value: Any = None
    precision: str | None = None
    gain: float
    spread: float
    evidence: str
    source: str

    @property
    def low(self) -> float:
        """Returns the low end of the 90 % interval, as a fraction of throughput."""
        return math.expm1(self.gain - Z_90 * self.spread)

    @property
    def high(self) -> float:
        return math.expm1(self.gain + Z_90 * self.spread)

    def expected_improvement(self, *, at_most: float) -> float:
        """Returns the expected improvement of log throughput, if the gain is at most `at_most` (log throughput)."""
        return self._above(0.0) - self._above(max(at_most, 0.0))

    def _above(self, floor: float) -> float:
        """Returns the expected excess over `floor`; 0 if that is infinite."""
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
    """Returns the effect of moving a knob from its value in the recipe to `to`.

    Towards the published value it is the knob's own effect, away from it the reverse. For other knobs, from or to names
    other than the published one, and on CPU ranks, for which nothing was published, it is the row `*`.
    """
    others, was = effects()[UNLISTED], recipe.knob(knob)
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
    return (
        found if nearer > 0 else replace(found, gain=-found.gain, evidence=f"of the opposite change: {found.evidence}")
    )


def gained(recipe: Recipe, knob: str) -> bool:
    """Returns true if the knob has its published best value, a name or true, so that no burst is spent on measuring
    without it. Numbers have no best value."""
    found = _published(recipe, knob)
    if found is None or not (found.value is True or isinstance(found.value, str)):
        return False
    return bool(found.value == recipe.knob(knob))


def _published(recipe: Recipe, knob: str) -> Effect | None:
    """Returns the knob's row, if it applies to the recipe's precision."""
    found = effects().get(knob)
    return found if found is not None and found.precision in (None, recipe.training.precision) else None
