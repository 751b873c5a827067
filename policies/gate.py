"""The memory gate: will a recipe fit? Asked before a burst is paid for.

The closed form of `trainer.estimate.memory.estimate` is corrected by the peaks the trials measured, and bounded by the
recipes that ran out of memory. Memory is never assumed to fall because one knob fell: every recipe is estimated
whole. Where nothing is known the gate abstains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policies.trial import Status, Trial
from trainer.recipe import Recipe

# Free share of the limit asked of a forecast: allocators round up, and ranks differ. More without a measured peak.
MARGIN_MEASURED = 0.04
MARGIN_ESTIMATED = 0.10
Estimate = Callable[[Recipe], float | None]  # peak of the hottest rank, GiB; None: not covered

SLOPE_RANGE = (0.5, 2.0)  # how far a line through two measured peaks is believed


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """`fits` is None where the gate abstains; `because` always says on what ground."""

    peak_gib: float | None
    fits: bool | None
    because: str


@dataclass(frozen=True, kw_only=True)
class _Known:
    """A trial beside its estimate. An out-of-memory trial needed at least the limit."""

    number: int
    recipe: Recipe
    estimate_gib: float
    peak_gib: float
    died: bool


def closed_form_gib(recipe: Recipe) -> float | None:
    """Peak of the hottest rank by estimate; None where the form does not cover the recipe."""
    from trainer.estimate.memory.estimate import estimate_memory

    try:
        return float(estimate_memory(recipe).peak_gib)
    except (ValueError, KeyError):
        return None


class MemoryGate:
    """Forecasts from the trials so far. Rebuilt at each decision: it holds nothing the trials do not."""

    def __init__(self, trials: Sequence[Trial], *, estimate: Estimate = closed_form_gib) -> None:
        self._estimate = estimate
        self._limit = measured_limit(trials)
        self._known = [known for trial in trials if (known := self._learn(trial))]

    def forecast(self, recipe: Recipe) -> Forecast:
        """The peak to expect (GiB, hottest rank) and whether it fits."""
        limit = self._limit if self._limit is not None else recipe.memory_limit_gib
        estimate = self._estimate(recipe)
        if limit is None or estimate is None:
            what = "the memory limit is unknown" if limit is None else "the estimate does not cover this recipe"
            return Forecast(peak_gib=None, fits=None, because=what)
        dead = self._died_below(recipe, estimate)
        if dead:
            because = f"it needs as much memory as trial {dead.number}, which ran out"
            return Forecast(peak_gib=max(estimate, limit), fits=False, because=because)
        peak, margin, ground = self._calibrated(recipe, estimate)
        fits = peak <= limit * (1.0 - margin)
        return Forecast(peak_gib=peak, fits=fits, because=f"{peak:.2f} of {limit:.2f} GiB {ground}")

    def _learn(self, trial: Trial) -> _Known | None:
        estimate = self._estimate(trial.recipe)
        if estimate is None:
            return None
        peaks = [max(o.peak_gib) for o in trial.outcomes if o.ok and o.peak_gib]
        if not peaks and not (trial.ran_out and self._limit):
            return None
        return _Known(
            number=trial.number,
            recipe=trial.recipe,
            estimate_gib=estimate,
            peak_gib=max(peaks) if peaks else float(self._limit or 0.0),
            died=trial.ran_out,
        )

    def _died_below(self, recipe: Recipe, estimate: float) -> _Known | None:
        """A dead trial that was estimated no higher, unless a living one was estimated at least as high or is more
        like the recipe: the estimate errs differently for another layout."""
        living = [known for known in self._known if not known.died]
        if any(known.estimate_gib >= estimate for known in living):
            return None
        reach = min((_distance(recipe, known) for known in living), default=None)
        dead = [known for known in self._known if known.died and known.estimate_gib <= estimate]
        return next((known for known in dead if reach is None or _distance(recipe, known) <= reach), None)

    def _calibrated(self, recipe: Recipe, estimate: float) -> tuple[float, float, str]:
        """The nearest measured trial's peak, plus the estimated difference times how well differences came true."""
        measured = [known for known in self._known if not known.died]
        if not measured:
            floor = self._scale_of_the_dead() * estimate
            return floor, MARGIN_ESTIMATED, "by estimate"
        nearest = min(measured, key=lambda known: (_distance(recipe, known), -known.number))
        difference = estimate - nearest.estimate_gib
        slope = _slope(measured)
        peak = max(nearest.peak_gib + slope * difference, 0.0)
        # An untested step upwards is held to the larger of both corrections, offset and scale
        if difference > 0:
            peak = max(peak, nearest.peak_gib + difference)
        return peak, MARGIN_MEASURED, f"predicted from trial {nearest.number}'s {nearest.peak_gib:.2f} GiB"

    def _scale_of_the_dead(self) -> float:
        """How far the closed form is too low at least: what ran out of memory needed the limit."""
        return max([1.0, *(known.peak_gib / known.estimate_gib for known in self._known if known.died)])


def _distance(recipe: Recipe, known: _Known) -> int:
    """Knobs that differ."""
    return len(recipe.diff(known.recipe))


def _slope(measured: Sequence[_Known]) -> float:
    """Measured difference over estimated difference between the extremes; 1 with fewer than two estimates."""
    low, high = min(measured, key=_by_estimate), max(measured, key=_by_estimate)
    span = high.estimate_gib - low.estimate_gib
    if span < 0.02 * max(high.estimate_gib, 1e-9):
        return 1.0
    return min(max((high.peak_gib - low.peak_gib) / span, SLOPE_RANGE[0]), SLOPE_RANGE[1])


def _by_estimate(known: _Known) -> float:
    return known.estimate_gib


def measured_limit(trials: Sequence[Trial]) -> float | None:
    limits = [o.limit_gib for trial in trials for o in trial.outcomes if o.limit_gib is not None]
    return min(limits) if limits else None


DIED = 0.1  # over the limit, where a recipe ran out and nothing says by how much


def excess(trial: Trial) -> float:
    """Peak over the limit, minus one: above 0 the trial did not fit."""
    peaks = [max(o.peak_gib) / o.limit_gib - 1 for o in trial.outcomes if o.ok and o.peak_gib and o.limit_gib]
    return max(peaks) if peaks else (DIED if trial.status is Status.OOM else -DIED)
