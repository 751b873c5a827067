"""`moe-autotune check`: every problem of a recipe at once, its predicted memory, and the nearest recipe
without. `--explain RULE` tells a rule instead."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from autotune.commands.answer import DONE, NO_RECIPE, Answer

RuleName = Annotated[str | None, Parameter(name="--explain", help="Tell a rule by its id: no recipe is needed.")]
RecipeOrNone = Annotated[str | None, Parameter(help="A recipe file, or the name of a packaged example.")]

LauncherName = Annotated[
    str | None,
    Parameter(name="--for", help="Ask one launcher, and a version of it: megatron-lm, megatron-lm@0.16.1, …"),
]


def check(recipe: RecipeOrNone = None, *, launcher: LauncherName = None, explain: RuleName = None) -> Answer:
    """Say everything that is wrong with a recipe, whether it should fit, and the nearest valid one."""
    if explain is not None:
        return _explained(explain)
    if recipe is None:
        raise _nothing_asked()
    return _checked(recipe) if launcher is None else _checked_for(recipe, launcher)


def _checked(name: str) -> Answer:
    from autotune.check.findings import show_findings, show_nearest
    from autotune.estimate.memory import memory_document
    from trainer.legality import findings_of
    from trainer.recipe import load_recipe
    from trainer.recipe.rules import FindingKind, nearest_valid

    given = load_recipe(name)
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


def _checked_for(name: str, launcher: str) -> Answer:
    """What a launcher says of it; there is no nearest recipe: the rules tell what to set."""
    from autotune.check.findings import show_findings
    from autotune.check.launchers import findings_of_launcher
    from trainer.recipe import load_recipe
    from trainer.recipe.rules import FindingKind

    findings = findings_of_launcher(load_recipe(name), launcher)
    legal = all(finding.kind is not FindingKind.ERROR for finding in findings)
    show_findings(findings)
    document: dict[str, Any] = {"schema": 1, "for": launcher, "legal": legal, "findings": findings}
    return Answer(code=DONE if legal else NO_RECIPE, document=document)


def _explained(name: str) -> Answer:
    """The page of one rule; BadInputError with the nearest ids where there is none of that name."""
    from autotune.check.findings import rule_document, show_rule
    from trainer.errors import BadInputError, Problem
    from trainer.recipe.rules import RULES
    from trainer.recipe.source import near

    rules = {rule.id: rule for rule in RULES}
    if name not in rules:
        ids = near(name, rules)
        hint = f"did you mean {', '.join(ids)}?" if ids else "`moe-autotune check RECIPE` names the rules it breaks"
        raise BadInputError(Problem(where="--explain", what=f"there is no rule {name!r}", hint=hint))
    page = rule_document(rules[name])
    show_rule(page)
    return Answer(code=DONE, document={"schema": 1, "rule": page})


def _nothing_asked() -> Exception:
    from trainer.errors import BadInputError, Problem

    hint = "`moe-autotune check RECIPE`, or `moe-autotune check --explain RULE`"
    return BadInputError(Problem(where="moe-autotune check", what="no recipe is named", hint=hint))
