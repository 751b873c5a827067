"""`moe-autotune estimate`: predicted memory of a recipe, by part, without a burst."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import Answer, RecipeName

WITHOUT_TIME = "step time is not estimated by this version: memory only"


def estimate(
    recipe: RecipeName,
    *,
    imbalance: Annotated[
        float | None,
        Parameter(
            validator=Number(gte=1), help="Tokens of the hottest expert rank over the mean, for the upper bound."
        ),
    ] = None,
) -> Answer:
    """Predict a recipe's memory by part, without running it."""
    from autotune.legal import refuse_illegal
    from autotune.memory import memory_document, show_memory
    from trainer.estimate.memory import estimate_memory
    from trainer.recipe import load_recipe

    given = load_recipe(recipe)
    refuse_illegal(given, where=recipe)
    memory = memory_document(given, imbalance=imbalance)
    assumptions = [*estimate_memory(given).assumptions, WITHOUT_TIME]
    show_memory(memory)
    for assumption in assumptions:
        print(f"note: {assumption}")
    return Answer(document={"schema": 1, "memory": memory, "assumptions": assumptions})
