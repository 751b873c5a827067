"""What a rule is: a row that says when a recipe breaks it, why that matters, and the nearest value that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trainer.recipe.schema import Recipe

Suggestion = dict[str, Any]  # knob -> nearest valid value


class FindingKind(StrEnum):
    ERROR = "error"  # it does not run, or trains wrongly
    WARNING = "warning"  # it runs, and something is probably not meant
    AUTOSET = "autoset"  # Megatron changes the value on its own
    FALLBACK = "fallback"  # Megatron does something else instead


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One broken rule. `suggestion` gives knobs the nearest values that satisfy it, {} when no knob can."""

    rule: str
    kind: FindingKind
    message: str
    hint: str
    knobs: tuple[str, ...]
    source: str
    suggestion: Suggestion = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A recipe by what differs from the plain one of `examples.py`: sections of the YAML schema and knobs."""

    knobs: Mapping[str, Any] = field(default_factory=dict)
    model: str | Mapping[str, Any] | None = None
    cluster: Mapping[str, Any] | None = None
    burst: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row. `breaks` returns the message when the recipe breaks it, else None; `nearest` the cure.

    `source` cites the rule table (R001...), Megatron's own file, or the measurement it came from; `versions` says
    which Megatron-Core releases have it. `broken` and `kept` are examples, checked by the conformance tests.
    """

    id: str
    knobs: tuple[str, ...]
    breaks: Callable[[Recipe], str | None]
    nearest: Callable[[Recipe], Suggestion]
    source: str
    broken: Example
    kept: Example
    kind: FindingKind = FindingKind.ERROR
    versions: str = "all"
    hint: str = ""  # what to do; written from the suggestion where empty

    def finding(self, recipe: Recipe) -> Finding | None:
        message = self.breaks(recipe)
        if message is None:
            return None
        suggestion = self.nearest(recipe)
        return Finding(
            rule=self.id,
            kind=self.kind,
            message=message,
            hint=self.hint or set_hint(suggestion),
            knobs=self.knobs,
            source=self.source,
            suggestion=suggestion,
        )


def set_hint(suggestion: Suggestion) -> str:
    """ "set a to 1 and b to 2"."""
    settings = [f"{knob} to {'null' if value is None else value}" for knob, value in suggestion.items()]
    return f"set {' and '.join(settings)}" if settings else "change the model or the cluster"
