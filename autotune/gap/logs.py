"""Reads the measured step from a trainer's log: the median of its iterations after the warm-up."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from policies.noise import median_error
from trainer.engines.command.lines import Reading, patterns_with
from trainer.frameworks.registry import framework_named
from trainer.recipe.framework_names import DEFAULT

WARM_UP, MOST_WARM_UP = 3, 0.5  # iterations left out at the start, and their largest share of a short log
FEW = 3  # iterations: up to so many, their scatter is not used
SCATTER_OF_FEW = 0.05  # relative standard deviation assumed instead (judged)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A measured step in seconds, its relative standard deviation, and the number of iterations behind it.

    `warm`: True if warm-up iterations are left out.
    """

    step_s: float
    deviation: float
    count: int
    warm: bool = True


def steps_in(text: str) -> Steps | None:
    """Returns the median step of a log; None if it has no iteration."""
    reading = _read(text)
    times = [each.ms / 1e3 for _, each in sorted(reading.iterations.items()) if each.ms > 0]
    return steps_of(times) if times else None


def steps_of(times: Sequence[float]) -> Steps:
    """Returns the median of steps in seconds, given in order, without the warm-up."""
    cold = min(WARM_UP, math.floor(MOST_WARM_UP * (len(times) - 1)))
    left = list(times[cold:])
    deviation = median_error(left) if len(left) > FEW else SCATTER_OF_FEW
    return Steps(step_s=median(left), deviation=deviation, count=len(left), warm=cold > 0)


def _read(text: str) -> Reading:
    reading = Reading(patterns=dict(_patterns()))
    for line in text.splitlines():
        reading.feed(line)
    return reading


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Returns the log patterns of the default framework; the others print the same lines."""
    return tuple(patterns_with(framework_named(DEFAULT).log_patterns, {}).items())
