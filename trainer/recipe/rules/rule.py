"""The type of a rule: a row with its condition, its reason, and the nearest values that satisfy it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from packaging.specifiers import SpecifierSet

from trainer.recipe.knobs import KNOBS
from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import Test
from trainer.recipe.rules.releases import EVERY_RELEASE, EVERY_RELEASE_WORD, releases_text
from trainer.recipe.settings import Settings

SIZES = ("world", "tp", "pp", "cp", "dp", "ep", "etp", "edp", "vpp")  # sizes of a Layout, as messages name them
Suggestion = dict[str, Any]  # knob -> nearest valid value


class FindingKind(StrEnum):
    ERROR = "error"  # the recipe does not run, or trains wrongly
    # only some releases or frameworks refuse the recipe or train it wrongly, or something is probably not intended
    WARNING = "warning"
    AUTOSET = "autoset"  # Megatron changes the value on its own
    FALLBACK = "fallback"  # Megatron does something else instead


class Effect(StrEnum):
    """Effect of a recipe that no check refuses, in the releases that the rule holds for."""

    FAILS = "fails"  # it hangs or crashes after its start
    TRAINS_WRONGLY = "trains-wrongly"  # its gradients or its updates are wrong
    MAY_TRAIN_WRONGLY = "may-train-wrongly"  # wrong depending on timing or data, or in a single report
    INACCURATE = "inaccurate"  # it trains, but a norm, a scale or a count is inaccurate


# effects for which a recipe must not be started in a release that has them
CERTAIN = (None, Effect.FAILS, Effect.TRAINS_WRONGLY)


class FrameworkName(StrEnum):
    """Framework that a rule applies to. A rule of Megatron-Core applies to every framework."""

    CORE = "core"
    MEGATRON_LM = "megatron-lm"  # the command line of pretrain_gpt.py
    MEGATRON_BRIDGE = "megatron-bridge"
    OURS = "moe-autotune"


CORE = (FrameworkName.CORE,)
MEGATRON_LM = (FrameworkName.MEGATRON_LM,)
BRIDGE = (FrameworkName.MEGATRON_BRIDGE,)
OURS = (FrameworkName.OURS,)
LM_AND_BRIDGE = (FrameworkName.MEGATRON_LM, FrameworkName.MEGATRON_BRIDGE)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One broken rule.

    `suggestion` has the nearest values of knobs that satisfy it; {} if no knob that is not frozen can.
    """

    rule: str
    kind: FindingKind
    message: str
    hint: str
    knobs: tuple[str, ...]
    source: str
    binds: tuple[FrameworkName, ...] = CORE
    versions: str = EVERY_RELEASE_WORD
    effect: Effect | None = None
    suggestion: Suggestion = field(default_factory=dict)

    @property
    def settled(self) -> Suggestion:
        """Returns the suggestion; {} for a warning of an `effect`, which only some releases may have."""
        return self.suggestion if self.effect is None or self.kind is FindingKind.ERROR else {}


@dataclass(frozen=True, kw_only=True)
class Example:
    """Recipe given by its differences from the base recipe of `examples.py`. `model` and `cluster` replace fields."""

    knobs: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "megatron"


def example(
    *,
    model: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
    engine: str = "megatron",
    **knobs: Any,
) -> Example:
    return Example(knobs=knobs, model=model or {}, cluster=cluster or {}, engine=engine)


def fixed(**suggestion: Any) -> Callable[[Settings], Suggestion]:
    """Returns a function that suggests the same for every recipe."""
    return lambda recipe: dict(suggestion)


def nothing(recipe: Settings) -> Suggestion:
    """Returns {}: no knob can satisfy the rule."""
    return {}


def without(name: str, *words: str) -> Callable[[Settings], Suggestion]:
    """Returns a function that suggests a list knob without these words."""
    return lambda recipe: {name: tuple(word for word in recipe.knob(name) or () if word not in words)}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row. `broken` is the violating condition; `message` a template over knobs, fields of the model, cluster and
    burst, and the parallel sizes (`{tp}`, `{world}`); `nearest` the knob changes that satisfy the rule, {} if none can.

    It is an error if the newest Megatron-Core, or a framework, refuses the recipe or trains it wrongly, and no other
    framework is known to run it. It is a warning if only older releases, or one of two frameworks, do.

    `source` cites Megatron's own file and line (Megatron-LM main d98e8a64, Megatron-Bridge 067f987d; a release if it
    names one), an issue (Megatron-LM#2272) or a measurement; `versions` are the Megatron-Core releases it holds for,
    `binds` the frameworks. `breaking` and `passing` are examples: the conformance tests run every one.

    `effect` is None if a check of the release or framework refuses the recipe, or if it only costs time or memory.
    Otherwise no check refuses it: `effect` says what happens, and `source` names the issue.
    """

    id: str
    knobs: tuple[str, ...]
    broken: Test
    message: str
    nearest: Callable[[Settings], Suggestion] = nothing
    source: str
    breaking: Example
    passing: Example | None = None  # None: the breaking example with `nearest`; `examples.passing_of` returns it
    kind: FindingKind = FindingKind.ERROR
    binds: tuple[FrameworkName, ...] = CORE
    refuses: tuple[FrameworkName, ...] = ()  # frameworks that refuse the recipe, although it runs elsewhere
    versions: SpecifierSet = EVERY_RELEASE
    versions_note: str = ""  # a note on the releases, for people
    effect: Effect | None = None
    # releases of Megatron-Core that refuse what the frameworks of `binds` correct
    core_refuses: SpecifierSet | None = None
    hint: str = ""  # what to do if no knob can satisfy the rule; else a hint is made from the suggestion

    @property
    def releases_text(self) -> str:
        """Returns the releases and the note as pages show them: "0.18 and later; before, nothing refuses it"."""
        refused = self.core_refuses
        text = releases_text(self.versions) if refused is None else f"refused by Megatron-Core {releases_text(refused)}"
        return f"{text}; {self.versions_note}" if self.versions_note else text

    def wanted(self, recipe: Settings) -> Suggestion:
        """Returns the nearest values that satisfy the rule, frozen or not; {} if no knob can."""
        return {knob: value for knob, value in self.nearest(recipe).items() if recipe.knob(knob) != value}

    def finding(self, recipe: Settings) -> Finding | None:
        if not self.broken(recipe):
            return None
        wanted = self.wanted(recipe)
        frozen = sorted(wanted.keys() & set(recipe.tune.freeze))
        suggestion = {} if frozen else wanted
        return Finding(
            rule=self.id,
            kind=self.kind,
            message=self.message.format_map(_Facts(recipe)),
            hint=_unfreeze_hint(wanted, frozen) if frozen else set_hint(wanted) if wanted else self.hint,
            knobs=self.knobs,
            source=self.source,
            binds=self.binds,
            versions=self.releases_text,
            effect=self.effect,
            suggestion=suggestion,
        )


def set_hint(suggestion: Suggestion) -> str:
    """Returns a hint such as "set a to 1 and b to null"."""
    return "set " + " and ".join(f"{knob} to {_plain(value)}" for knob, value in suggestion.items())


def _unfreeze_hint(wanted: Suggestion, frozen: list[str]) -> str:
    names = ", ".join(frozen)
    return f"{names} {'is' if len(frozen) == 1 else 'are'} frozen: take it out of tune.freeze and {set_hint(wanted)}"


class _Facts(dict[str, Any]):
    """Values that a message may name, looked up on access: knobs, parallel sizes, fields of model, cluster, burst."""

    def __init__(self, recipe: Settings) -> None:
        super().__init__()
        self._recipe = recipe

    def __missing__(self, name: str) -> Any:
        if name in KNOBS:
            return _plain(self._recipe.knob(name))
        if name == "gpu":
            return self._recipe.cluster.gpu_name
        if name in SIZES:
            return getattr(layout_of(self._recipe), name)
        parts = (self._recipe.architecture, self._recipe.cluster, self._recipe.burst, self._recipe)
        return _plain(next(getattr(part, name) for part in parts if hasattr(part, name)))


def _plain(value: Any) -> Any:
    words = {None: "null", True: "true", False: "false"}
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return words[value] if value is None or isinstance(value, bool) else value
