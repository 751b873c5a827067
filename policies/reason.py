"""Why a recipe was proposed, a trial judged or a study ended: a kind and its figures.

Data only: words are made of a reason where it is shown (`autotune.looks.reasons`), and no code reads them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ReasonKind(StrEnum):
    """What decided. The figures of each kind are listed beside it."""

    BASE = "base"  # a proposal: the recipe as given; no figures


@dataclass(frozen=True, kw_only=True)
class Reason:
    """`figures` hold JSON values only (numbers, text, lists, mappings); units are in their names."""

    kind: ReasonKind
    figures: Mapping[str, Any] = field(default_factory=dict)
