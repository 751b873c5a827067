"""`moe-autotune estimate`: predicted memory and step time of a recipe, by part, without a burst."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import NO_RECIPE, Answer, PageFile, RecipeName


def estimate(
    recipe: RecipeName,
    *,
    imbalance: Annotated[
        float | None,
        Parameter(
            validator=Number(gte=1), help="Tokens of the hottest expert rank over the mean, for the upper bound."
        ),
    ] = None,
    html: PageFile = None,
    dry_run: Annotated[
        bool, Parameter(negative=(), help="Build and step one rank with Megatron-Core itself, without a GPU.")
    ] = False,
    pp_rank: Annotated[
        int | None, Parameter(validator=Number(gte=0), help="Of --dry-run; default the one that needs most.")
    ] = None,
) -> Answer:
    """Predict a recipe's memory and step time by part, without running it."""
    from autotune.dry_run import asked_of_megatron
    from autotune.estimated import estimated, show_estimate
    from autotune.legal import refuse_illegal
    from trainer.recipe import load_recipe

    given = load_recipe(recipe)
    tried = asked_of_megatron(given, asked=dry_run, pp_rank=pp_rank)  # before our rules: its words are the answer
    if any(found.refused for found in tried.values()):
        return Answer(code=NO_RECIPE, document={"schema": 1, **tried})
    refuse_illegal(given, where=recipe)
    found = estimated(given, imbalance=imbalance)
    show_estimate(found)
    if html is not None:
        from autotune.pages.estimate import estimate_page
        from autotune.pages.write import write_page

        write_page(html, estimate_page(found))
    return Answer(document=found.document | tried)
