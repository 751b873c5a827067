"""The JSON documents of `check`: a recipe's findings, and a rule's own page."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from autotune.estimate.memory import Memory
from trainer.recipe.rules import Finding, FindingKind, Rule
from trainer.recipe.rules.examples import passing_of, recipe_of
from trainer.recipe.rules.rule import Effect, FrameworkName
from trainer.recipe.tables import read_table


class Nearest(TypedDict):
    """The nearest legal recipe: its changed knobs and its text."""

    changes: dict[str, tuple[Any, Any]]  # knob → [from, to]
    yaml: str


# in functional syntax because `for` is a Python keyword
_Asked = TypedDict(
    "_Asked",
    {"for": NotRequired[Annotated[str, msgspec.Meta(description="the framework that --for named, and its version")]]},
)


class CheckDocument(_Asked):
    """Document of `check RECIPE --json`. `memory`: predicted for the recipe, null if it is not legal or with --for; if
    --fix replaces the recipe, predicted for the legal one."""

    schema: int
    legal: bool
    findings: list[Finding]
    memory: Memory | None
    nearest: Nearest | None  # null if the recipe is legal, or no change of knobs that are not frozen makes it legal
    file: NotRequired[str | None]  # the file that --fix wrote; null: stdout
    # the packages installed here, and whether they were tested together; null if ranks run elsewhere
    releases: str | None


class RulePage(TypedDict):
    """A rule: its message for the violating example, what to do, its source, and both examples."""

    id: str
    kind: FindingKind
    message: str
    because: str
    hint: str
    knobs: tuple[str, ...]
    binds: tuple[FrameworkName, ...]
    versions: str
    # what happens if a recipe that breaks the rule is run; null if a release or framework refuses it, or if it only
    # costs time or memory
    effect: Effect | None
    source: str
    compared: list[str]  # differences to Megatron's own behaviour
    breaking: dict[str, Any]
    passing: dict[str, Any]


class RuleDocument(TypedDict):
    """Document of `check --explain RULE --json`."""

    schema: int
    rule: RulePage


class RulesDocument(TypedDict):
    """Document of `check --rules --json`."""

    schema: int
    rules: list[RulePage]


def rule_document(rule: Rule) -> RulePage:
    finding = rule.finding(recipe_of(rule.breaking))
    compared = [row for row in read_table("rules/comparison.csv") if row["rule"] == rule.id]
    return {
        "id": rule.id,
        "kind": rule.kind,
        "message": rule.message,
        "because": finding.message if finding else rule.message,
        "hint": finding.hint if finding else rule.hint,
        "knobs": rule.knobs,
        "binds": rule.binds,
        "versions": rule.releases_text,
        "effect": rule.effect,
        "source": rule.source,
        "compared": list(dict.fromkeys(row["why"] for row in compared)),
        "breaking": _differences(rule.breaking),
        "passing": _differences(passing_of(rule)),
    }


def _differences(example: Any) -> dict[str, Any]:
    """Returns the values of an example, which override those of the plain recipe."""
    parts = {"model": dict(example.model), "cluster": dict(example.cluster), "knobs": dict(example.knobs)}
    written = {name: values for name, values in parts.items() if values}
    return written | ({"burst": {"engine": example.engine}} if example.engine != "megatron" else {})
