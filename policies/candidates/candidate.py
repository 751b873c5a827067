"""A candidate: a legal recipe with its predicted gain, its P(fits), and the source of the prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analyzers.diagnosis import Wall
from policies.candidates.effects import Effect
from policies.changes.fix import Fix
from policies.constants import constant
from policies.search.acquisition import CONFIDENT_FIT_PROBABILITY, Scores, gain_interval, is_lost_in_noise
from policies.search.avoid import Avoid
from policies.trial import Z_90
from trainer.estimate.candidates import Candidates, Floats
from trainer.recipe import Recipe
from trainer.recipe.knobs import Knob
from trainer.recipe.layout import sizes_of

EQUIVALENT_LOG_STEP = constant("equivalent_log_step")
FITS_TOLERANCE = constant("fits_tolerance")
RECOMPUTE_LADDER = (None, "selective", "full")  # from least to most recompute


class PredictionSource(StrEnum):
    """The source of a candidate's predicted gain."""

    SURROGATE = "surrogate"  # closed forms calibrated by this study
    TRACE = "trace"  # a traced loss that a fix claims to give back, if the surrogate predicts no change
    PUBLISHED = "published"  # the published effect of one setting, if the surrogate predicts no change


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A fix's claim on the incumbent's trace: `claimed_us` of a step, lost to `wall`.

    `bound` is the most that it could gain (a fraction of throughput).
    """

    fix: Fix
    wall: Wall
    claimed_us: float
    bound: float


@dataclass(frozen=True, kw_only=True)
class Published:
    """The published effect of moving one knob; `bound` is the most that it could gain (log throughput; inf without a
    trace)."""

    knob: Knob
    effect: Effect
    bound: float


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One recipe that may be tried next; candidates are ranked by `score`.

    If the incumbent runs, `log_step` is the log ratio of step time to the incumbent's and `log_gain` its negative; else
    `log_step` is the log of seconds and `log_gain` is None. `deviation` is the standard deviation of `log_step`,
    `noise` the one that a busy machine adds to the log ratio of two bursts.
    """

    recipe: Recipe
    source: PredictionSource = PredictionSource.SURROGATE
    log_step: float
    deviation: float
    noise: float
    log_gain: float | None
    fits_probability: float
    expected_improvement: float
    score: float
    claimed: Claimed | None = None
    published: Published | None = None
    paired: bool = False  # True: two moves at once, considered only if no single move is worth a burst

    @property
    def is_lost_in_noise(self) -> bool:
        if self.log_gain is None:
            return False
        most = self.log_gain + Z_90 * self.deviation
        return is_lost_in_noise(self.noise, expected=self.log_gain, most=most)

    @property
    def gains(self) -> tuple[float, float, float]:
        """Returns (expected, low, high) as fractions of throughput; low and high are the 90 % interval of a measured
        gain. Requires an incumbent that runs."""
        assert self.log_gain is not None
        return gain_interval(self.log_gain, self.deviation, self.noise)

    @property
    def prediction(self) -> tuple[float, float | None, float | None, float]:
        """Returns (gain, low, high, bound) as fractions of throughput; low and high are None for a claim on the
        trace."""
        assert self.log_gain is not None
        if self.claimed is not None:
            return math.expm1(self.log_gain), None, None, self.claimed.bound
        if self.published is None:
            gain, low, high = self.gains
            return gain, low, high, high
        effect, bound = self.published.effect, self.published.bound
        most = math.expm1(bound) if math.isfinite(bound) else effect.high
        high = min(effect.high, most)
        return min(math.expm1(effect.gain), most), effect.low if effect.low < high else 0.0, high, most


@dataclass(frozen=True, kw_only=True)
class Group:
    """A table of N candidates with their scores; `recipe` makes the recipe of a row, None if a rule forbids it."""

    table: Candidates
    scores: Scores
    recipe: Callable[[int], Recipe | None]

    def candidate(self, row: int, recipe: Recipe, *, runs: bool) -> Candidate:
        """Makes the candidate of a row; `runs` is true if the incumbent runs, so that a gain over it is defined."""
        log_step = float(self.scores.log_step[row])
        return Candidate(
            recipe=recipe,
            log_step=log_step,
            deviation=float(self.scores.deviation[row]),
            noise=self.scores.noise,
            log_gain=-log_step if runs else None,
            fits_probability=float(self.scores.fits_probability[row]),
            expected_improvement=float(self.scores.expected_improvement[row]),
            score=float(self.scores.score[row]),
        )


def group_of(recipes: Sequence[Recipe], table: Candidates, scores: Scores) -> Group:
    """Makes a group from a list of recipes, the rows of `table`."""
    return Group(table=table, scores=scores, recipe=lambda row: recipes[row])


def best_first(groups: Sequence[Group], avoid: Avoid, *, runs: bool) -> Iterator[Candidate]:
    """Yields the candidates of all groups, the highest score first, as `in_order` does."""
    return in_order(groups, [-group.scores.score for group in groups], avoid, runs=runs)


def in_order(groups: Sequence[Group], keys: Sequence[Floats], avoid: Avoid, *, runs: bool) -> Iterator[Candidate]:
    """Yields the candidates of all groups by ascending key ([N] per group), each recipe once.

    Skips recipes to avoid and gains that would be lost in the noise. Makes the recipe of a row only when the row is
    reached.
    """
    offsets = np.cumsum([0, *(group.table.count for group in groups)])
    seen: set[str] = set()
    for at in np.argsort(np.concatenate(keys), kind="stable"):
        number = int(np.searchsorted(offsets, at, side="right")) - 1
        group, row = groups[number], int(at - offsets[number])
        recipe = group.recipe(row)
        if recipe is None or recipe.digest() in seen or avoid.excludes(recipe):
            continue
        seen.add(recipe.digest())
        found = group.candidate(row, recipe, runs=runs)
        if not found.is_lost_in_noise:
            yield found


def preferred(found: Sequence[Candidate]) -> Candidate:
    """Returns the candidate with the highest score; among equals, the one with least offload, model parallelism and
    recompute. Equal: predicted to be as fast and as likely to fit."""
    first = max(found, key=lambda each: each.score)
    equal = [
        each
        for each in found
        if each.source is first.source is PredictionSource.SURROGATE
        and each.log_step <= first.log_step + EQUIVALENT_LOG_STEP
        and each.fits_probability >= min(first.fits_probability, CONFIDENT_FIT_PROBABILITY) - FITS_TOLERANCE
    ]
    return min(equal, key=_cost_order, default=first)


def _cost_order(candidate: Candidate) -> tuple[int, int, int]:
    recipe = candidate.recipe
    tp, pp, _, cp, _, _ = sizes_of(recipe)
    offload = recipe.knob("optimizer_cpu_offload") or recipe.knob("fine_grained_activation_offloading")
    return int(bool(offload)), tp * pp * cp, RECOMPUTE_LADDER.index(recipe.knob("recompute_granularity"))
