"""Where the steps of training are: the windows the partition is made for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from analyzers.timeline import Spans, Timeline

# the first pattern with a range decides; nested finds of one pattern (a step in a step) are kept as they are
STEP_PATTERNS = (
    re.compile(r"^ProfilerStep#\d+$"),  # torch.profiler's schedule
    re.compile(r"^(train_?)?step$", re.IGNORECASE),  # the training worker; Megatron-LM's `step`
    re.compile(r"^(train_?|training )?(step|iteration|iter)[ _#:]*\d+$", re.IGNORECASE),
)
WARM_UP = 1.3  # times the median of the later steps; steps of one training loop differ by a few per cent


@dataclass(frozen=True, kw_only=True)
class Step:
    name: str
    start_us: float
    end_us: float


def steps(timeline: Timeline) -> list[Step]:
    """The steps in order of time; names that repeat get their number: `step#0`, `step#1`."""
    return steps_among(timeline.ranges)


def steps_among(ranges: Spans) -> list[Step]:
    """The steps among any ranges."""
    for pattern in STEP_PATTERNS:
        found = ranges.take(ranges.where(partial(_matches, pattern)))
        if len(found):
            order = np.lexsort((found.end_us, found.start_us)).tolist()
            names = [found.names[found.name[i]] for i in order]
            unique = len(set(names)) == len(names) and all("#" in n or n[-1].isdigit() for n in names)
            return [
                Step(
                    name=name if unique else f"{name}#{k}",
                    start_us=float(found.start_us[i]),
                    end_us=float(found.end_us[i]),
                )
                for k, (i, name) in enumerate(zip(order, names, strict=True))
            ]
    return []


def warm_up(duration_us: Sequence[float]) -> int:
    """How many steps at the start are warm-up: one if it is much longer than the later ones, of which there are two.

    Caches fill, kernels are compiled and tuned, the allocator grows: none of it comes back in later steps.
    """
    first, later = duration_us[:1], duration_us[1:]
    return int(len(later) >= 2 and first[0] > WARM_UP * float(np.median(later)))


def is_step(name: str) -> bool:
    return any(pattern.match(name) for pattern in STEP_PATTERNS)


def _matches(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(name) is not None
