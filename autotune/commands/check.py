"""`moe-autotune check`: shows every problem of a recipe at once, its predicted memory, and the nearest legal recipe,
which `--fix` writes. `--explain RULE` explains one rule, `--rules` lists them all."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from autotune.commands.answer import DONE, NO_RECIPE, Answer, Force, MachineName

if TYPE_CHECKING:
    from autotune.check.document import CheckDocument
    from autotune.output import Output

RuleName = Annotated[str | None, Parameter(name="--explain", help="Explain one rule by its id; no recipe needed.")]
AllRules = Annotated[bool, Parameter(name="--rules", negative=(), help="List every rule; no recipe needed.")]
RecipeOrNone = Annotated[str | Path | None, Parameter(help="A recipe file, or the name of a packaged example.")]
Fix = Annotated[bool, Parameter(name="--fix", negative=(), help="Write the nearest legal recipe.")]
FixFile = Annotated[
    Path | None, Parameter(name=("--output", "-o"), help="With --fix: the output file; default stdout.")
]

FrameworkName = Annotated[
    str | None,
    Parameter(name="--for", help="Check for one framework, and a version of it: megatron-lm, megatron-lm@0.16.1, …"),
]


def check(
    recipe: RecipeOrNone = None,
    *,
    framework: FrameworkName = None,
    machine: MachineName = None,
    fix: Fix = False,
    output: FixFile = None,
    force: Force = False,
    explain: RuleName = None,
    rules: AllRules = False,
) -> Answer:
    """Check a recipe: every problem at once, whether it should fit, and the nearest legal recipe."""
    if explain is not None:
        return _explained(explain)
    if rules:
        return _all_rules()
    if recipe is None:
        raise _usage("no recipe is named", "`moe-autotune check RECIPE`, or `moe-autotune check --explain RULE`")
    if output is not None and not fix:
        raise _usage("-o names the file of --fix", "add --fix, or leave -o out")
    return _checked(str(recipe), framework, machine, fix, _target(str(recipe), output, force))


def _checked(name: str, framework: str | None, machine: str | None, fix: bool, target: Output | None) -> Answer:
    """Checks one recipe. With --fix and no file, stdout gets the recipe and nothing else."""
    from autotune.check.findings import show_findings, show_nearest, show_wrapped
    from autotune.check.frameworks import findings_of_framework
    from autotune.estimate.machine import chosen_machine, cluster_of
    from autotune.estimate.memory import memory_document
    from autotune.looks.releases import releases_text
    from autotune.tuning.environment import environment
    from trainer.extras import trains_here
    from trainer.legality import findings_of, nearest_legal
    from trainer.recipe import load_recipe
    from trainer.recipe.rules import FindingKind

    given = load_recipe(name)
    cluster = cluster_of(chosen_machine(machine, gpu=given.cluster.gpu_name))
    find = findings_of if framework is None else partial(findings_of_framework, named=framework)
    findings = find(given)
    legal = all(finding.kind is not FindingKind.ERROR for finding in findings)
    memory = memory_document(given, cluster=cluster) if legal and framework is None else None
    nearest = given if legal else nearest_legal(given, find)
    changes = None if nearest is None else given.diff(nearest)
    releases = releases_text(environment()) if trains_here(given) else None
    with redirect_stdout(sys.stderr) if fix and target is None else nullcontext():
        show_findings(findings, memory)
        if not legal:
            show_nearest(changes)
        if releases is not None:
            show_wrapped(f"here: {releases}")
        if fix and not legal and nearest is not None:
            from autotune.estimate.memory import show_memory

            memory = memory_document(nearest, cluster=cluster)
            show_memory(memory)
    document: CheckDocument = {
        "schema": 1,
        "legal": legal,
        "findings": findings,
        "memory": memory,
        "releases": releases,
        "nearest": None if legal or nearest is None else {"changes": changes or {}, "yaml": nearest.to_yaml()},
    }
    if framework is not None:
        document["for"] = framework
    if fix and nearest is not None:
        from autotune.check.fixed import fixed_text

        document["file"] = _write(
            fixed_text(name, nearest, changes or {}, file=None if target is None else target.path), target
        )
    runs = nearest is not None if fix else legal
    return Answer(code=DONE if runs and (memory is None or memory["may_fit"]) else NO_RECIPE, document=document)


def _target(recipe: str, output: Path | None, force: bool) -> Output | None:
    from autotune.output import text_at
    from trainer.recipe.source import source_file

    return text_at(output, inputs=(source_file(recipe),), force=force)


def _write(text: str, target: Output | None) -> str | None:
    if target is None:
        print(text, end="")
        return None
    target.write(text)
    print(target.path)
    return str(target.path)


def _explained(name: str) -> Answer:
    """Prints the page of one rule. Raises BadInputError with the nearest ids for an unknown one."""
    from autotune.check.document import RuleDocument, rule_document
    from autotune.check.findings import show_rule
    from trainer.errors import BadInputError, Problem
    from trainer.recipe.rules import RULES
    from trainer.recipe.source import near

    rules = {rule.id: rule for rule in RULES}
    if name not in rules:
        ids = near(name, rules)
        hint = f"did you mean {', '.join(ids)}?" if ids else "`moe-autotune check --rules` lists them all"
        raise BadInputError(Problem(where="--explain", what=f"there is no rule {name!r}", hint=hint))
    page = rule_document(rules[name])
    show_rule(page)
    return Answer(document=RuleDocument(schema=1, rule=page))


def _all_rules() -> Answer:
    from autotune.check.document import RulesDocument, rule_document
    from autotune.check.findings import show_rules
    from trainer.recipe.rules import RULES

    pages = [rule_document(rule) for rule in RULES]
    show_rules(pages)
    return Answer(document=RulesDocument(schema=1, rules=pages))


def _usage(what: str, hint: str) -> Exception:
    from trainer.errors import BadInputError, Problem

    return BadInputError(Problem(where="moe-autotune check", what=what, hint=hint))
