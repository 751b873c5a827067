"""`moe-autotune plan`: legal layouts of a recipe, ranked by estimate, without a burst."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import DONE, NO_RECIPE, Answer, RecipeName

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

    from autotune.layouts import SIZES, layouts
    from trainer.recipe import load_recipe

    given = load_recipe(recipe)
    found = layouts(given)
    table = Table(*SIZES, "data_parallel_size", "peak GiB", "fits", box=None)
    for layout in found[:top]:
        sizes = [str(size) for size in layout.sizes.values()]
        table.add_row(*sizes, str(layout.data_parallel_size), f"{layout.peak_gib:.2f}", "yes" if layout.fits else "no")
    console = Console()
    console.print(table)
    for assumption in ASSUMPTIONS:
        console.print(f"note: {assumption}")
    fitting = sum(layout.fits for layout in found)
    console.print(f"{len(found)} legal layouts, {fitting} should fit", highlight=False)
    document = {
        "schema": 1,
        "layouts": [asdict(layout) for layout in found[:top]],
        "legal": len(found),
        "fitting": fitting,
        "assumptions": list(ASSUMPTIONS),
    }
    return Answer(code=DONE if fitting else NO_RECIPE, document=document)
