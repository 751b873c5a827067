"""What one study hands on to another: light, for whoever only keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What another study left: θ of the factors that its bursts have touched, and their standard deviations."""

    study: str
    trials: int
    mean: Mapping[str, float]
    deviation: Mapping[str, float]
