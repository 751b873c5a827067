"""`moe-autotune plan`: legal layouts of a recipe, ranked by estimate, without a burst."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import DONE, NO_RECIPE, Answer, RecipeName

if TYPE_CHECKING:
    from autotune.layouts import Layout

ASSUMPTIONS = (
    "step time is not estimated by this version: layouts that fit are ranked by data parallelism, then memory",
)


def plan(
    recipe: RecipeName,
    *,
    top: Annotated[int, Parameter(validator=Number(gt=0), help="How many layouts to show.")] = 10,
) -> Answer:
    """List the legal layouts that should fit, those with the most data parallelism first."""
    from rich.console import Console
    from rich.table import Table

    from autotune.layouts import layouts
    from autotune.quantities import gib, significant
    from trainer.recipe import load_recipe

    given = load_recipe(recipe)
    found = layouts(given)
    limit = given.memory_limit_gib
    table = Table("TP", "PP", "CP", "EP", "DP", "peak GiB", "at worst", "fits", box=None)
    for layout in found[:top]:
        sizes = [str(size) for size in layout.sizes.values()]
        memory = (significant(layout.peak_gib), significant(layout.upper_gib))
        table.add_row(*sizes, str(layout.data_parallel_size), *memory, _fits(layout, limit))
    console = Console()
    console.print(table)
    for assumption in ASSUMPTIONS:
        console.print(f"note: {assumption}")
    fitting = sum(layout.fits for layout in found)
    against = f" in {gib(limit)} a rank" if limit else ": no memory limit is known"
    console.print(f"{len(found)} legal layouts, {fitting} should fit{against}", highlight=False)
    document = {
        "schema": 1,
        "layouts": [asdict(layout) for layout in found[:top]],
        "legal": len(found),
        "fitting": fitting,
        "assumptions": list(ASSUMPTIONS),
    }
    return Answer(code=DONE if fitting else NO_RECIPE, document=document)


def _fits(layout: Layout, limit_gib: float | None) -> str:
    """`maybe` where only the estimated peak is below the limit, not its upper end."""
    if not layout.fits:
        return "no"
    return "maybe" if limit_gib is not None and layout.upper_gib > limit_gib else "yes"
