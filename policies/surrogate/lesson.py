"""A study's knowledge for use by another one. Kept free of heavy imports for the journal's reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """Mean and standard deviation of the factors that another study's bursts have updated."""

    study: str
    trials: int
    mean: Mapping[str, float]
    deviation: Mapping[str, float]
