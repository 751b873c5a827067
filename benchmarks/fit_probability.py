"""Compares P(fits) before any burst with the outcome: each measured run is given limits around what it needed.

A run's peak is the memory that torch's allocator gave to tensors; memory outside the allocator was not measured and
counts as zero. A GPU must also hold what fragmentation takes. P(fits) is therefore judged twice: on what was allocated,
with fragmentation known to be none, which judges the estimate of tensors alone; and as the tuner uses it, on each run
together with each share that `reserved_memory.csv` has of other runs. The limits are LIMITS times the peak, evenly
spaced in log. Cases count alike, however many runs they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from benchmarks.memory_accuracy import LARGE_GIB, Judged
from benchmarks.places import table_rows
from benchmarks.published_memory import GB_TO_GIB, measured_runs
from policies.surrogate.memory import EXTRA, GROUPS, MemoryPrior, fit_memory, fit_probability, table_memory_prior
from trainer.estimate.candidates import Floats, one
from trainer.estimate.memory.estimate import memory_of
from trainer.recipe import Recipe

LIMITS: Floats = np.geomspace(0.8, 1.25, 41)
EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
NOTHING = (0.0,)  # shares lost to fragmentation if only allocated memory counts
CERTIFIED = 0.9  # confidence of the interval of an observed share
TIMES = (0.25, 0.5, 0.75, 1.0, 1.5)  # factors on the spreads of the prior
KNOWN_SPREAD = 1e-6  # spread of a known factor: positive, because its inverse is computed
# P(fits) is clipped to this and one minus this in the log loss, so that a single surprise is not infinite
LOSS_CLIP = 1e-4


@dataclass(frozen=True, kw_only=True)
class Peak:
    """One measured run: its peak, and the peak that is estimated without its own case, GiB, of the pipeline rank
    `rank` or of the hottest."""

    recipe: Recipe
    case: str
    rank: int | None
    measured_gib: float
    estimated_gib: float


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """One published run: what torch reserved beyond what it allocated, as a share of it.

    `ran_out` is true if memory was used up; otherwise the allocator had room to keep memory that it did not need.
    """

    run: str
    source: str
    ran_out: bool
    share: float


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Pairs of a run and a limit with P(fits) from `low` to `high`: their mean P(fits), the share that fits, the
    confidence interval of that share (CERTIFIED), the number of pairs and the number of cases."""

    low: float
    high: float
    predicted: float
    fitting: float
    certified: tuple[float, float]
    pairs: int
    cases: int


def peaks_of(judged: Sequence[Judged]) -> list[Peak]:
    """Returns the measured runs of Megatron-LM's tests: the last pipeline rank of each."""
    return [
        Peak(
            recipe=each.run.recipe,
            case=each.run.case,
            rank=-1,
            measured_gib=each.measured_gib,
            estimated_gib=each.peak,
        )
        for each in judged
        if each.run.recipe
    ]


def published_peaks() -> list[Peak]:
    """Returns published peaks that nothing was fitted to; some of their settings are assumed."""
    return [
        Peak(
            recipe=recipe,
            case=what,
            rank=None,
            measured_gib=measured_gb * GB_TO_GIB,
            estimated_gib=float(memory_of(one(recipe)).peak_gib[0]),
        )
        for what, measured_gb, recipe, _ in measured_runs()
    ]


def read_reserved(path: Path) -> list[Reserved]:
    return [
        Reserved(
            run=row["run"],
            source=row["source"],
            ran_out=row["ran_out"] == "yes",
            share=float(row["reserved"]) / float(row["allocated"]) - 1,
        )
        for row in table_rows(path)
    ]


def allocated_prior() -> MemoryPrior:
    """Returns the tables' prior of what is allocated: fragmentation takes nothing."""
    prior, at = table_memory_prior(), list(GROUPS).index("fragmentation")
    mean, spread = prior.mean.copy(), prior.spread.copy()
    mean[at], spread[at] = 0.0, KNOWN_SPREAD
    return replace(prior, mean=mean, spread=spread)


def scaled(prior: MemoryPrior, times: float) -> MemoryPrior:
    """Returns the prior with `times` the spreads of the estimate's own parts."""
    own = [name not in EXTRA for name in GROUPS] + [False]  # the last element is memory outside the allocator
    return replace(prior, spread=np.where(own, times, 1.0) * prior.spread)


def predicted_and_fitting(
    peaks: Sequence[Peak], prior: MemoryPrior, taken: Sequence[float] = NOTHING
) -> list[Interval]:
    """Returns one row per interval of EDGES that has any pair.

    `taken`: shares that fragmentation takes beyond what was allocated, each as likely.
    """
    predicted, fit, weight = _pairs(peaks, prior, taken)
    cases = np.array([each.case for each in peaks])
    found = []
    for low, high in pairwise(EDGES):
        inside = (predicted >= low) & ((predicted < high) | (high == 1.0))
        if inside.any():
            fitting = float(np.average(fit[inside], weights=weight[inside]))
            met = len(set(cases[inside.any(axis=1)].tolist()))
            found.append(
                Interval(
                    low=low,
                    high=high,
                    predicted=float(np.average(predicted[inside], weights=weight[inside])),
                    fitting=fitting,
                    certified=certified(fitting, met),
                    pairs=int(inside.sum()),
                    cases=met,
                )
            )
    return found


def log_loss(peaks: Sequence[Peak], prior: MemoryPrior, taken: Sequence[float] = NOTHING) -> float:
    """Returns the mean log loss of P(fits), in nats; `taken` as in `predicted_and_fitting`."""
    predicted, fit, weight = _pairs(peaks, prior, taken)
    predicted = np.clip(predicted, LOSS_CLIP, 1 - LOSS_CLIP)
    return float(np.average(-fit * np.log(predicted) - (1 - fit) * np.log1p(-predicted), weights=weight))


def certified(share: float, cases: int) -> tuple[float, float]:
    """Returns the confidence interval (CERTIFIED) of a probability, given its share in `cases` independent cases
    (Clopper and Pearson)."""
    from scipy.stats import beta  # takes a third of a second to import

    hits, error = share * cases, 1 - CERTIFIED
    low = float(beta.ppf(error / 2, hits, cases - hits + 1)) if hits > 0 else 0.0
    high = float(beta.ppf(1 - error / 2, hits + 1, cases - hits)) if hits < cases else 1.0
    return low, high


def print_fits(
    console: Console, judged: Sequence[Judged], by_family: Sequence[Judged], reserved: Sequence[Reserved]
) -> None:
    """Prints P(fits) against the outcome, and the log loss with other spreads. `judged` and `by_family` are predicted
    without their cases and families."""
    _print_reserved(console, reserved)
    taken = [each.share for each in reserved if each.ran_out]
    cases, families, published = peaks_of(judged), peaks_of(by_family), published_peaks()
    large = [each for each in cases if each.measured_gib > LARGE_GIB]
    allocated, whole = allocated_prior(), table_memory_prior()
    rows: dict[str, tuple[Sequence[Peak], MemoryPrior, Sequence[float]]] = {
        "allocated, cases left out": (cases, allocated, NOTHING),
        "allocated, families left out": (families, allocated, NOTHING),
        f"allocated, above {LARGE_GIB:.0f} GiB": (large, allocated, NOTHING),
        "allocated, published peaks": (published, allocated, NOTHING),
        "as the tuner predicts it, allocated alone": (cases, whole, NOTHING),
        "as the tuner predicts it, cases left out": (cases, whole, taken),
        "as the tuner predicts it, families left out": (families, whole, taken),
        "as the tuner predicts it, published peaks": (published, whole, taken),
    }
    columns = [Column(name, justify="right") for name in ("P(fits)", "mean", "fit", "certified", "cases")]
    grid = Table("", *columns, box=None, title="P(fits) before any burst", title_justify="left")
    for name, (peaks, prior, lost) in rows.items():
        for each in predicted_and_fitting(peaks, prior, lost):
            low, high = each.certified
            figures = (f"{each.predicted:.2f}", f"{each.fitting:.2f}", f"{low:.2f}–{high:.2f}", str(each.cases))
            grid.add_row(name, f"{each.low:.1f}–{each.high:.1f}", *figures)
    console.print(grid)
    for times in TIMES:
        losses = [log_loss(peaks, scaled(allocated, times)) for peaks in (cases, families, published)]
        shown = ", ".join(f"{loss:.3f}" for loss in losses)
        console.print(
            f"{times} times the spreads: log loss of what is allocated {shown} (cases left out, families, published)"
        )


def _print_reserved(console: Console, reserved: Sequence[Reserved]) -> None:
    for name, ran_out in (("where memory was used up", True), ("where there was room", False)):
        shares = [each.share for each in reserved if each.ran_out is ran_out]
        console.print(
            f"reserved beyond what was allocated, {name}: median {np.median(shares):.1%}, {min(shares):.1%} to "
            f"{max(shares):.1%} of {len(shares)} published figures",
            highlight=False,
        )


def _pairs(peaks: Sequence[Peak], prior: MemoryPrior, taken: Sequence[float]) -> tuple[Floats, Floats, Floats]:
    """Returns (P(fits), share of `taken` with which the run fits, weight) of each pair of a run and a limit, [runs,
    limits] each."""
    predicted = np.array([_chances(each, prior) for each in peaks])
    fit = np.broadcast_to((LIMITS[:, None] >= 1 + np.array(taken)).mean(axis=1), predicted.shape)
    runs_of = Counter(each.case for each in peaks)
    weight = np.broadcast_to(np.array([1 / runs_of[each.case] for each in peaks])[:, None], predicted.shape)
    return predicted, fit, weight


def _chances(each: Peak, prior: MemoryPrior) -> Floats:
    """Returns P(fits) of one run at every limit, [limits]."""
    rows = one(each.recipe)
    table = memory_of(rows)
    alone = replace(prior, outside_gib=-float(table.outside_gib[0]))
    need, deviation = fit_memory([], None, alone).needs(rows, rank=each.rank)
    by_rank = sum(table.by_part.values(), np.zeros(1))[0]
    # the table's constants were fitted with this case, `estimated_gib` without it
    left_out = each.estimated_gib / float(by_rank.max() if each.rank is None else by_rank[each.rank])
    return fit_probability(need * left_out, deviation, LIMITS * each.measured_gib)
