"""The flags of Megatron-LM that correspond to parts of a recipe, and the versions that know each.

`flags.csv` has one row per flag. `part` is what it sets: a field of the model, a knob, the precision (several flags
together), or nothing of a recipe (`required`: flags that Megatron-LM requires with other settings). A field with
several rows has several words (`--swiglu`, `--quick-geglu`), an off-switch, or another name in some versions; the first
row that a version knows is written, every row is read.

`since` is the first core release with the flag, empty for 0.14 and earlier; `until` the first without it. The rows come
from building the parsers of core_v0.14.0, 0.15.0, 0.16.0, 0.16.1, 0.17.0, 0.18.0, 0.19.0 and main d98e8a64.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal

from trainer.errors import BadInputError, Problem
from trainer.recipe.rules.releases import NEWEST, plain_release
from trainer.recipe.tables import read_table

HEAD = NEWEST
VERSIONS = ("0.14", "0.15", "0.16", "0.16.1", "0.17", "0.18", "0.19", HEAD)  # oldest first

# value: one word; values: several words; commas: one word, joined by commas; frequency: a number or a Python list;
# dtype: fp32 for float32; switch: no word, the field is then `means`
Form = Literal["value", "values", "commas", "frequency", "dtype", "switch"]


@dataclass(frozen=True, kw_only=True)
class Flag:
    part: Literal["model", "knob", "precision", "required"]
    field: str | None
    flag: str
    form: Form
    means: Any  # value of the field that a switch sets; None if it only accompanies another flag
    since: str | None
    until: str | None
    note: str

    def known_to(self, version: str) -> bool:
        return _number(self.since or "0") <= _number(version) < _number(self.until or "1000")


def _flag(row: dict[str, str]) -> Flag:
    cells: dict[str, Any] = {name: text or None for name, text in row.items()}
    return Flag(**cells | {"means": json.loads(row["means"]) if row["means"] else None, "note": row["note"]})


FLAGS: tuple[Flag, ...] = tuple(_flag(row) for row in read_table("flags.csv", package="trainer.frameworks.megatron_lm"))
BY_NAME: dict[str, Flag] = {flag.flag: flag for flag in FLAGS}


@cache
def flags_of(field: str) -> tuple[Flag, ...]:
    """Returns every flag of a knob or a field of the model, the newest name first."""
    return tuple(flag for flag in FLAGS if flag.field == field)


def version_of(text: str | None) -> str:
    """Returns a version as `--for` names it ("0.16.1", "core_v0.17.0", "v0.18", "head"); None is the newest.

    Raises BadInputError if the text is not a version, or is older than the table.
    """
    if text is None:
        return HEAD
    plain = plain_release(text)
    if plain == HEAD:
        return HEAD
    if not re.fullmatch(r"\d+(\.\d+)*", plain) or _number(plain) < _number(VERSIONS[0]):
        near = get_close_matches(plain, VERSIONS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise BadInputError(
            Problem(
                where=f"--for {text}",
                what="no version of Megatron-LM that this table knows",
                hint=f"{hint}There are {', '.join(VERSIONS)}",
            )
        )
    return plain


def since(version: str, first: str) -> bool:
    """Returns whether `version` is `first` or later."""
    return _number(version) >= _number(first)


def _number(version: str) -> tuple[int, ...]:
    return (999,) if version == HEAD else tuple(map(int, version.split(".")))
