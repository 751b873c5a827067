"""The predicted memory of a recipe, shown by `check`, `estimate` and `run --dry-run`."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from rich.table import Column, Table

from autotune.looks.quantities import gib
from autotune.looks.wrapping import plain_console
from trainer.estimate.learned import TABLES, LearnedCluster
from trainer.estimate.memory.bound import calibrations
from trainer.estimate.memory.estimate import estimate_memory
from trainer.recipe import Recipe

SHOWN_GIB = 0.0005  # parts below would read as 0.000


class Errors(TypedDict):
    """Errors of estimates against measured runs, in per cent of the measured value."""

    median: float | None
    p90: float | None


class Calibration(TypedDict):
    """The number of measured runs that an estimate was compared with, and its errors; none of them is on a CPU."""

    rows: int
    error_pct: Errors


class Memory(TypedDict):
    """Predicted memory of the hottest rank. `fits` is by the upper bound and `may_fit` by the point estimate, both
    including memory outside the allocator; both are true if no limit is known."""

    limit_gib: float | None
    peak_gib: float
    upper_gib: float
    outside_gib: float  # GPU memory outside torch's allocator
    fits: bool
    may_fit: bool
    hottest: dict[str, int]  # pp_rank: the pipeline rank that needs the most memory
    by_part: dict[str, float]  # GiB; they add up to the peak
    by_pp_rank: NotRequired[tuple[dict[str, float], ...]]  # GiB by part, of `estimate`
    calibration: Calibration


def memory_document(recipe: Recipe, *, imbalance: float | None = None, cluster: LearnedCluster = TABLES) -> Memory:
    """Returns the `memory` part of `estimate --json`.

    `imbalance`: tokens of the hottest expert rank over the mean, for the upper bound; `cluster`: figures learned about
    the cluster.
    """
    estimate = estimate_memory(recipe, imbalance=imbalance, learned=cluster.memory)
    limit = cluster.limit_gib(recipe)
    return {
        "limit_gib": limit,
        "peak_gib": estimate.peak_gib,
        "upper_gib": estimate.upper_gib,
        "outside_gib": estimate.outside_gib,
        "fits": limit is None or estimate.upper_gib + estimate.outside_gib <= limit,
        "may_fit": limit is None or estimate.peak_gib + estimate.outside_gib <= limit,
        "hottest": estimate.hottest,
        "by_part": estimate.by_part,
        "calibration": _calibration(recipe),
    }


def _calibration(recipe: Recipe) -> Calibration:
    """Returns the number of measured runs of the recipe's kind of model (dense or MoE), and the errors on them."""
    known = calibrations()["dense" if recipe.architecture.num_moe_experts is None else "MoE"]
    return calibrated(recipe, rows=known.rows, median_pct=known.median_pct, p90_pct=known.p90_pct)


def calibrated(recipe: Recipe, *, rows: int, median_pct: float, p90_pct: float) -> Calibration:
    """Returns the `calibration` part of `estimate --json`; no rows for a CPU recipe."""
    if recipe.hardware.is_cpu:
        return {"rows": 0, "error_pct": {"median": None, "p90": None}}
    return {"rows": rows, "error_pct": {"median": median_pct, "p90": p90_pct}}


def show_memory(memory: Memory) -> None:
    """Prints the estimate by part, largest first, and whether it fits."""
    console = plain_console()
    table = Table("part", Column("GiB", justify="right"), box=None)
    for part, size in sorted(memory["by_part"].items(), key=lambda item: -item[1]):
        if size >= SHOWN_GIB:
            table.add_row(part, f"{size:.3f}")
    console.print(table)
    peak = f"estimated peak {gib(memory['peak_gib'])}, upper bound {gib(memory['upper_gib'])}"
    console.print(f"{peak}, {against_limit(memory)}", highlight=False)


def against_limit(memory: Memory) -> str:
    """Returns the words on whether the point estimate and the upper bound fit the limit."""
    limit = memory["limit_gib"]
    if not limit:
        return "no limit known"
    outside = memory.get("outside_gib", 0.0)
    outside_text = f" less {gib(outside)} for context and communication" if outside else ""
    fits = memory["upper_gib"] + outside <= limit
    tight = "may not fit" if memory["peak_gib"] + outside <= limit else "does not fit"
    return f"limit {gib(limit)}{outside_text}: {'fits' if fits else tight}"
