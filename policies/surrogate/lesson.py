"""The knowledge of one study for use by another.

This module has no heavy imports, since the reader of journals uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """The factors that another study or a probe has learned: mean and standard deviation by factor."""

    study: str
    trials: int
    mean: Mapping[str, float]
    deviation: Mapping[str, float]
