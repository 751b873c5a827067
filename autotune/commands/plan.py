"""`moe-autotune plan`: the best legal layouts and settings of a recipe by estimate, without a burst."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import DONE, NO_RECIPE, Answer, Force, PageFile, RecipeName


def plan(
    recipe: RecipeName,
    *,
    top: Annotated[int, Parameter(validator=Number(gt=0), help="How many layouts to show.")] = 10,
    html: PageFile = None,
    force: Force = False,
) -> Answer:
    """Rank every legal layout that fits by predicted throughput, and say why familiar ones are missing."""
    from autotune.output import page_at
    from autotune.plan.document import plan_document, planned, show_plan
    from trainer.recipe import load_recipe
    from trainer.recipe.source import source_file

    page = page_at(html, inputs=[source_file(recipe)], force=force)
    found = planned(load_recipe(recipe), top=top)
    show_plan(found)
    if page is not None:
        from autotune.plan.page import plan_page

        page.write(plan_page(found))
        print(f"page: {page.path}")
    return Answer(code=DONE if found.fitting else NO_RECIPE, document=plan_document(found))
