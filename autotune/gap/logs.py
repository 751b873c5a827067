"""Reads a trainer's log: the measured step, which is the median of its iterations after the warm-up, and the failure
that ended the run."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from policies.noise import median_error
from trainer.burst import BurstPhase, Failure, FailureKind
from trainer.engines.command.lines import Reading, patterns_with, plain
from trainer.failure_words import match
from trainer.frameworks.registry import framework_named
from trainer.recipe.framework_names import DEFAULT
from trainer.secrets import masked

WARM_UP, MAX_WARM_UP = 3, 0.5  # iterations left out at the start, and their largest share of a short log
FEW = 3  # iterations: from so few, or fewer, no scatter is computed
SCATTER_OF_FEW = 0.05  # relative standard deviation that is assumed for FEW iterations (judged)
LONGEST = 200  # characters of evidence


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A measured step in seconds, its relative standard deviation, and the number of iterations behind it.

    `warm`: True if warm-up iterations are left out.
    """

    step_s: float
    deviation: float
    count: int
    warm: bool = True


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """The median step of a log, None without an iteration, and the failure that ended the run, None if it did not
    fail."""

    steps: Steps | None
    ended: Failure | None


def log_of(text: str) -> RunLog:
    """Returns the steps before the first NaN or infinity in a log, and the failure that ended the run."""
    reading = Reading(patterns=dict(_patterns()))
    lines = text.splitlines()
    last = 0
    for at, line in enumerate(lines):
        known = len(reading.iterations)
        reading.feed(line)
        last = at + 1 if len(reading.iterations) > known else last
    iterations = [each for _, each in sorted(reading.iterations.items())]
    wrong = next(((at, said) for at, each in enumerate(iterations) if (said := each.not_finite())), None)
    if wrong is not None:
        ended: Failure | None = Failure(kind=FailureKind.NAN, evidence=wrong[1])
    else:
        ended = _ending(lines[last:])
    times = [each.ms / 1e3 for each in iterations[: wrong[0] if wrong else None] if each.ms > 0]
    return RunLog(steps=steps_of(times) if times else None, ended=ended)


def _ending(lines: Sequence[str]) -> Failure | None:
    """Returns the failure that ended a run, NaN or a lack of memory, from the lines after its last iteration (all lines
    of a run that ended before its first); None for any other end."""
    found = match(lines, BurstPhase.FORWARD)
    if found is None or found[0].kind not in (FailureKind.NAN, FailureKind.OOM):
        return None
    return Failure(kind=found[0].kind, evidence=masked(plain(found[1]))[:LONGEST])


def steps_of(times: Sequence[float]) -> Steps:
    """Returns the median of step times, given in order, in seconds, without the warm-up; its relative standard error
    (SCATTER_OF_FEW for FEW steps or fewer), and the number of steps behind it."""
    cold = min(WARM_UP, math.floor(MAX_WARM_UP * (len(times) - 1)))
    left = list(times[cold:])
    deviation = median_error(left) if len(left) > FEW else SCATTER_OF_FEW
    return Steps(step_s=median(left), deviation=deviation, count=len(left), warm=cold > 0)


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Returns the log patterns of the default framework; the others print the same lines."""
    return tuple(patterns_with(framework_named(DEFAULT).log_patterns, {}).items())
