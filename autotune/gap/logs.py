"""The measured step in a trainer's log: its iterations without those of the warm-up."""

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

WARM_UP, MOST_WARM_UP = 3, 0.5  # iterations at the start; of a short log at most this share
FEW = 3  # iterations whose scatter says little
SCATTER_OF_FEW = 0.05  # relative standard deviation assumed of them (judged)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A measured step in seconds, with its relative standard deviation and the number of iterations behind it. `warm`:
    true where those of the warm-up are left out."""

    step_s: float
    deviation: float
    count: int
    warm: bool = True


def steps_in(text: str) -> Steps | None:
    """Returns the median step of a log; None for one without an iteration."""
    reading = _read(text)
    times = [each.ms / 1e3 for _, each in sorted(reading.iterations.items()) if each.ms > 0]
    return steps_of(times) if times else None


def steps_of(times: Sequence[float]) -> Steps:
    """Returns the median of steps in the order they were taken, warm-up left out."""
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
    """Returns the patterns of the default framework: the others print the same lines."""
    return tuple(patterns_with(framework_named(DEFAULT).log_patterns, {}).items())
