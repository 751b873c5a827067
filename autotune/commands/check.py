"""`moe-autotune check`: every problem of a recipe at once, its predicted memory, and the nearest recipe
without."""

from __future__ import annotations

from typing import Any

from autotune.commands.answer import DONE, NO_RECIPE, Answer, RecipeName


def check(recipe: RecipeName) -> Answer:
    """Say everything that is wrong with a recipe, whether it should fit, and the nearest valid one."""
    from autotune.memory import memory_document
    from autotune.show import show_findings, show_nearest
    from trainer.recipe import load_recipe
    from trainer.recipe.rules import FindingKind, nearest_valid
    from trainer.recipe.rules import check as findings_of

    given = load_recipe(recipe)
    findings = findings_of(given)
    legal = all(finding.kind is not FindingKind.ERROR for finding in findings)
    memory = memory_document(given) if legal else None
    show_findings(findings, memory)
    nearest = None if legal else nearest_valid(given)
    changes = None if nearest is None else given.diff(nearest)
    if not legal:
        show_nearest(changes)
    document: dict[str, Any] = {
        "schema": 1,
        "legal": legal,
        "findings": findings,
        "memory": memory,
        "nearest": None if nearest is None else {"changes": changes, "yaml": nearest.to_yaml()},
    }
    fits = memory is None or memory["may_fit"]
    return Answer(code=DONE if legal and fits else NO_RECIPE, document=document)
