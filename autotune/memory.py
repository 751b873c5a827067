"""The predicted memory of a recipe, as `check`, `estimate` and `run --dry-run` show it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Column, Table

from autotune.quantities import gib
from trainer.estimate.memory import estimate_memory
from trainer.recipe import Recipe


def memory_document(recipe: Recipe) -> dict[str, Any]:
    """The `memory` part of `estimate --json`, GiB of the hottest rank; `fits` is true where no limit is
    known."""
    estimate = estimate_memory(recipe)
    limit = recipe.memory_limit_gib
    return {
        "limit_gib": limit,
        "peak_gib": estimate.peak_gib,
        "upper_gib": estimate.upper_gib,
        "fits": limit is None or estimate.peak_gib <= limit,
        "hottest": estimate.hottest,
        "by_part": estimate.by_part,
    }


def show_memory(memory: dict[str, Any]) -> None:
    """Prints the estimate by part, largest first, and whether it fits."""
    console = Console()
    table = Table("part", Column("GiB", justify="right"), box=None)
    for part, size in sorted(memory["by_part"].items(), key=lambda item: -item[1]):
        table.add_row(part, f"{size:.3f}")
    console.print(table)
    peak = f"estimated peak {gib(memory['peak_gib'])} a rank, {gib(memory['upper_gib'])} at worst"
    console.print(f"{peak}, {_against_limit(memory)}", highlight=False)


def _against_limit(memory: dict[str, Any]) -> str:
    """Whether the estimate fits, and whether its upper end does too."""
    limit = memory["limit_gib"]
    if not limit:
        return "no limit known"
    tight = "may not fit" if memory["upper_gib"] > limit else "fits"
    return f"limit {gib(limit)}: {tight if memory['fits'] else 'does not fit'}"
