"""Checks a recipe against every rule, and finds the nearest legal recipe."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

from trainer.recipe import rules
from trainer.recipe.rules.repair import Repair
from trainer.recipe.rules.rule import Effect, Finding, FindingKind, Rule
from trainer.recipe.rules.view import View
from trainer.recipe.schema import Recipe


def _discovered() -> tuple[Rule, ...]:
    """Returns the `ROWS` of every file of this package, in order of file names."""
    modules = (import_module(f"{rules.__name__}.{module.name}") for module in iter_modules(rules.__path__))
    return tuple(rule for module in modules for rule in getattr(module, "ROWS", ()))


RULES: tuple[Rule, ...] = _discovered()
# rules for every framework and release; slight inaccuracies are reported only for a known framework and release
GENERAL: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.effect is not Effect.INACCURATE)
ERRORS: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.kind is FindingKind.ERROR)


def check(recipe: Recipe) -> list[Finding]:
    """Returns a finding for every general rule that the recipe breaks, errors first."""
    return _errors_first(finding for rule in GENERAL if (finding := rule.finding(recipe)))


def check_moved(before: Recipe, recipe: Recipe, moved: Collection[str]) -> list[Finding]:
    """Returns the findings of `recipe`, which differs from `before` in the knobs `moved`.

    Only rules that read one of these knobs are evaluated again: a search derives hundreds of recipes from one.
    """
    evaluated = _evaluator(recipe)
    known = tuple(
        answer if answer.read.isdisjoint(moved) else evaluated(rule)
        for rule, answer in zip(GENERAL, _answers(before), strict=True)
    )
    _keep(recipe, known)
    broken = (rule for rule, answer in zip(GENERAL, known, strict=True) if answer.broken)
    return _errors_first(finding for rule in broken if (finding := rule.finding(recipe)))


def _errors_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.kind is not FindingKind.ERROR)


class _Answer(NamedTuple):
    """Result of one rule for one recipe: violated or not, and the knobs that the rule read."""

    broken: bool
    read: frozenset[str]


# id of a recipe -> (the recipe, which keeps its id unique; the results of the general rules)
_KNOWN: OrderedDict[int, tuple[Recipe, tuple[_Answer, ...]]] = OrderedDict()
MAX_KNOWN = 256


def _answers(recipe: Recipe) -> tuple[_Answer, ...]:
    """Returns the result of every general rule, cached for the most recent recipes."""
    if (found := _KNOWN.get(id(recipe))) is None:
        return _keep(recipe, tuple(map(_evaluator(recipe), GENERAL)))
    _KNOWN.move_to_end(id(recipe))
    return found[1]


def _keep(recipe: Recipe, answers: tuple[_Answer, ...]) -> tuple[_Answer, ...]:
    _KNOWN[id(recipe)] = recipe, answers
    if len(_KNOWN) > MAX_KNOWN:
        _KNOWN.popitem(last=False)
    return answers


def _evaluator(recipe: Recipe) -> Callable[[Rule], _Answer]:
    """Returns a function that evaluates a rule on the recipe."""
    read: set[str] = set()

    def knob(name: str) -> Any:
        read.add(name)
        return recipe.knob(name)

    def has(name: str) -> bool:
        read.add(name)
        return name in recipe.knobs

    view = View(recipe, knob, has)

    def evaluated(rule: Rule) -> _Answer:
        read.clear()
        broken = bool(rule.broken(view))
        return _Answer(broken, frozenset(read))

    return evaluated


def nearest_valid(recipe: Recipe) -> Recipe | None:
    """Returns the legal recipe with the fewest and smallest changes of knobs; None if the search finds none."""
    changes = Repair(errors=errors_of, rules={rule.id: rule for rule in RULES}).changes(recipe)
    return None if changes is None else recipe.replace(changes)


def errors_of(recipe: Recipe) -> list[Finding]:
    """Returns the findings that make the recipe illegal."""
    return [finding for rule in ERRORS if (finding := rule.finding(recipe))]
