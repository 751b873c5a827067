"""`moe-autotune estimate`: predicted memory of a recipe, by part, without a burst."""

from __future__ import annotations

from autotune.commands.answer import DONE, NO_RECIPE, Answer, RecipeName

ASSUMPTIONS = (
    "step time is not estimated by this version: memory only",
    "the memory estimate is not calibrated against measured runs",
)


def estimate(recipe: RecipeName) -> Answer:
    """Predict a recipe's memory by part, without running it."""
    from autotune.legal import refuse_illegal
    from autotune.memory import memory_document, show_memory
    from trainer.recipe import load_recipe

    given = load_recipe(recipe)
    refuse_illegal(given, where=recipe)
    memory = memory_document(given)
    show_memory(memory)
    for assumption in ASSUMPTIONS:
        print(f"note: {assumption}")
    document = {"schema": 1, "memory": memory, "assumptions": list(ASSUMPTIONS)}
    return Answer(code=DONE if memory["fits"] else NO_RECIPE, document=document)
