"""`moe-autotune plan`: ranks the legal layouts and settings of a recipe by estimate, without a burst."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import DONE, NO_RECIPE, Answer, Force, MachineName, PageFile, RecipeName, whole


def plan(
    recipe: RecipeName,
    *,
    top: Annotated[int, Parameter(converter=whole, validator=Number(gt=0), help="How many layouts to show.")] = 10,
    output: Annotated[
        Path | None, Parameter(name=("--output", "-o"), help="Write a choice to this file, as a recipe.")
    ] = None,
    choice: Annotated[int, Parameter(converter=whole, validator=Number(gt=0), help="The choice that -o writes.")] = 1,
    machine: MachineName = None,
    html: PageFile = None,
    force: Force = False,
) -> Answer:
    """Rank every legal layout that fits by predicted throughput, and say why familiar ones are missing."""
    from autotune.estimate.machine import chosen_machine
    from autotune.looks.working import working
    from autotune.output import page_at, text_at
    from autotune.plan.chosen import chosen_text
    from autotune.plan.document import plan_document, planned
    from autotune.plan.terminal import show_plan
    from trainer.recipe import load_recipe
    from trainer.recipe.source import source_file

    page = page_at(html, inputs=[source_file(str(recipe))], force=force)
    file = text_at(output, inputs=[source_file(str(recipe))], force=force)
    given = load_recipe(str(recipe))
    chosen = chosen_machine(machine, gpu=given.cluster.gpu_name)
    with working("estimating layouts"):
        found = planned(given, top=max(top, choice if file else 1), machine=chosen)
    if file is not None:
        file.write(chosen_text(found, choice))
    show_plan(found)
    if page is not None:
        from autotune.plan.page import plan_page

        page.write(plan_page(found))
        print(f"page: {page.path}")
    if file is not None:
        print(f"choice {choice}: {file.path}")
    return Answer(
        code=DONE if found.fitting else NO_RECIPE,
        document={**plan_document(found), "file": str(output) if output else None},
    )
