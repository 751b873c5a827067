"""The causes of a gap, the largest first: one or several gaps of a waterfall each.

Routing is one cause, whether a setting of the published run hides it (a forced load) or traced ranks wait for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainer.estimate.gap.parts import Cause
from trainer.estimate.gap.waterfall import Gap, Interval, Kind, Waterfall

FORCED = "moe_router_force_load_balancing"
LEAST = 0.005  # of the first level: smaller causes are not listed


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Seconds lost to one cause: a member of `Cause`, the name of a change, or the name of a gap."""

    name: str
    kind: Kind
    time: Interval
    gaps: tuple[Gap, ...]


def losses(found: Waterfall) -> list[Loss]:
    """Returns the causes that lose time, the largest first."""
    by_name: dict[str, list[Gap]] = {}
    for gap in found.gaps:
        by_name.setdefault(_cause(gap), []).append(gap)
    every = [
        Loss(
            name=name,
            kind=gaps[-1].kind,
            time=Interval(
                s=sum(gap.time.s for gap in gaps), deviation_s=math.hypot(*(gap.time.deviation_s for gap in gaps))
            ),
            gaps=tuple(gaps),
        )
        for name, gaps in by_name.items()
    ]
    least_s = LEAST * found.levels[0].time.s
    return sorted((loss for loss in every if loss.time.s > least_s), key=lambda loss: -loss.time.s)


def _cause(gap: Gap) -> str:
    return Cause.ROUTER if FORCED in gap.knobs else gap.name
