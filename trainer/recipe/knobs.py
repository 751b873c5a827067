"""Every knob of a training job: one row of `knobs.csv` each, read once.

A row has the section of the knob in a recipe, its names in Megatron-Core, Megatron-LM and Megatron-Bridge, its values,
its default and the origin of that, the phase that tunes it, the walls it acts on, whether changing it changes the
numbers that training computes, and the values a tuner tries. Dependencies between knobs are in `rules`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from trainer.recipe.tables import read_table

SectionName = Literal["training", "parallelism", "knobs"]
Numerics = Literal["training-equivalent", "numerics-changing", "benchmark-only"]
NUMERICS: tuple[Numerics, ...] = get_args(Numerics)
TOGETHER = "axis"  # value in the column `tries`
Kind = Literal["bool", "int", "float", "one", "any", "text", "sizes"]

_PYTHON_TYPES: dict[Kind, type] = {
    "bool": bool,
    "int": int,
    "float": float,
    "one": str,
    "any": tuple,
    "text": str,
    "sizes": tuple,
}


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Values that a knob takes: `bool`, `int>=1`, `float 0..1`, `text`, `one a|b`, `any a|b` or `sizes>=1`, a list of
    whole numbers; `?` also allows null."""

    kind: Kind
    words: tuple[str, ...] = ()  # words of `one` and `any`
    low: float | None = None
    high: float | None = None
    nullable: bool = False

    def problem(self, value: Any) -> str | None:
        """Returns the reason why `value` is not in the domain; None if it is."""
        if value is None:
            return None if self.nullable else "it cannot be null"
        if not self._has_type(value):
            return f"expected {self}, got {_described(value)}"
        if self.kind in ("one", "any"):
            strange = [word for word in ([value] if self.kind == "one" else value) if word not in self.words]
            return f"{', '.join(map(str, strange))} is not one of {', '.join(self.words)}" if strange else None
        if self.kind in ("bool", "text"):
            return None
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        numbers = value if self.kind == "sizes" else (value,)
        return None if all(low <= number <= high for number in numbers) else f"{value} is not {self}"

    def canonical(self, value: Any) -> Any:
        """Returns the value as a recipe stores it: lists as tuples, integers of a float domain as floats."""
        if self.kind in ("any", "sizes") and isinstance(value, list):
            return tuple(value)
        if self.kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return value

    def _has_type(self, value: Any) -> bool:
        if isinstance(value, bool):
            return self.kind == "bool"
        if self.kind == "float" and isinstance(value, int):
            return True
        if self.kind == "sizes" and not _are_whole(value):
            return False
        return isinstance(value, _PYTHON_TYPES[self.kind])

    def __str__(self) -> str:
        words = {
            "bool": "true or false",
            "int": f"a whole number{self._bounds}",
            "float": f"a number{self._bounds}",
            "one": f"one of {', '.join(self.words)}",
            "any": f"a list of {', '.join(self.words)}",
            "text": "text",
            "sizes": f"a list of whole numbers{self._bounds}",
        }[self.kind]
        return words + (" or null" if self.nullable else "")

    @property
    def _bounds(self) -> str:
        if self.low is not None and self.high is not None:
            return f" from {self.low:g} to {self.high:g}"
        return "" if self.low is None else f" of at least {self.low:g}"


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One row of knobs.csv.

    `default_from` is "megatron" if Megatron has the same default, "ours" if not.
    """

    name: str
    section: SectionName
    acts: Literal["model", "ddp", "optimizer", "parallelism", "training", "environment", "process"]
    domain: Domain
    default: Any
    default_from: Literal["megatron", "ours"]
    # name of its field in TransformerConfig, DistributedDataParallelConfig or OptimizerConfig
    megatron_core: str | None
    since: str | None  # first Megatron-Core release with that field, where 0.16.1 lacks it
    megatron_lm: str | None  # its flag in Megatron-LM
    megatron_bridge: str | None  # its path in Megatron-Bridge's ConfigContainer
    phase: Literal["fit", "scale", "profile", "retune"]
    walls: tuple[str, ...]
    numerics: Numerics
    # values worth a burst by themselves, in order; (): it changes with other knobs, or not at all
    tries: tuple[Any, ...]
    together: bool  # true if it is tried together with others, as an axis of the policy's space
    note: str

    @property
    def values(self) -> tuple[Any, ...] | None:
        """Returns the possible values, null last, if they can be listed; None for numbers, lists and text."""
        listed: dict[str, tuple[Any, ...]] = {"bool": (False, True), "one": self.domain.words}
        if self.domain.kind not in listed:
            return None
        return listed[self.domain.kind] + ((None,) if self.domain.nullable else ())


def _are_whole(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int for value in values) and bool(values)


def _described(value: Any) -> str:
    kind = {bool: "true/false", int: "a whole number", float: "a number", str: "text", list: "a list", tuple: "a list"}
    return f"{kind.get(type(value), type(value).__name__)} ({json.dumps(value, default=str)})"


@cache
def parse_domain(text: str) -> Domain:
    """Parses a cell of the `values` column. Raises ValueError for a text that is not in a form that `Domain` lists."""
    body, nullable = text.removesuffix("?"), text.endswith("?")
    match = re.fullmatch(r"(bool|int|float|text|one|any|sizes)(?:>=([\d.]+)| ([\d.]+)\.\.([\d.]+)| ([\w|+]+))?", body)
    if match is None:
        raise ValueError(f"no domain: {text!r}")
    kind, floor, low, high, words = match.groups()
    bound = floor or low
    return Domain(
        kind=kind,  # pyrefly: ignore[bad-argument-type]
        words=tuple(words.split("|")) if words else (),
        low=float(bound) if bound else None,
        high=float(high) if high else None,
        nullable=nullable,
    )


def _value(domain: Domain, word: str) -> Any:
    """Parses one word of the `tries` column."""
    return word if domain.kind in ("one", "text") else domain.canonical(json.loads(word))


def _knob(row: dict[str, str]) -> Knob:
    domain = parse_domain(row["values"])
    cells: dict[str, Any] = {name: text or None for name, text in row.items() if name != "values"}
    cells |= {
        "domain": domain,
        "default": domain.canonical(json.loads(row["default"])),
        "walls": tuple(row["walls"].split()),
        "tries": ()
        if row["tries"] == TOGETHER
        else tuple(_value(domain, word) for word in row["tries"].split("|") if word),
        "together": row["tries"] == TOGETHER,
        "note": row["note"],
    }
    return Knob(**cells)


KNOBS: dict[str, Knob] = {row["name"]: _knob(row) for row in read_table("knobs.csv")}
