"""The causes of a gap, the largest first; each consists of one or several gaps of a waterfall.

Routing is one cause, whether a setting of the published run hides it (a forced load) or traced ranks wait for it. If a
traced part differs from its estimate, the difference is attributed to the changes that act on the part: an excess up to
their predicted effect, since an effect is more often underestimated than one part is slow on a machine; a shortfall in
proportion to their effect, since no change saves time that the trace does not show. The split is not measured: its
relative standard deviation is EFFECT_OFF.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from trainer.estimate.gap.parts import Cause
from trainer.estimate.gap.waterfall import EFFECT_OFF, Gap, Interval, Kind, LevelName, Waterfall

FORCED = "moe_router_force_load_balancing"
MIN_LISTED_SHARE = 0.005  # share of the first level below which causes are not listed


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Seconds lost to one cause: a member of `Cause`, the name of a change, or the name of a gap.

    `gaps` add up to it. In the loss of a change, a gap of a traced part is the share of the part's difference that is
    attributed to the change.
    """

    name: str
    kind: Kind
    time: Interval
    gaps: tuple[Gap, ...]


def losses(found: Waterfall) -> list[Loss]:
    """Returns the causes that lose more than MIN_LISTED_SHARE of the first level's time, the largest first."""
    by_name: dict[str, list[Gap]] = {}
    causes = {gap.name: Cause.ROUTER if FORCED in gap.knobs else gap.name for gap in found.gaps if gap.knobs}
    for gap in found.gaps:
        for name, share in _divided(gap, causes):
            by_name.setdefault(causes.get(name, name), []).append(share)
    off = EFFECT_OFF if found.level(LevelName.OWN) is not None else 0.0
    every = [_loss(name, gaps, off) for name, gaps in by_name.items()]
    least_s = MIN_LISTED_SHARE * found.levels[0].time.s
    return sorted((loss for loss in every if loss.time.s > least_s), key=lambda loss: -loss.time.s)


def _loss(name: str, gaps: list[Gap], off: float) -> Loss:
    own = next((gap for gap in gaps if gap.kind is not Kind.PART), gaps[0])
    off_s = off * sum(gap.time.s for gap in gaps if gap.kind is Kind.PART)
    time = Interval(
        s=sum(gap.time.s for gap in gaps), deviation_s=math.hypot(off_s, *(gap.time.deviation_s for gap in gaps))
    )
    return Loss(name=name, kind=own.kind, time=time, gaps=tuple(gaps))


def _divided(gap: Gap, changes: Container[str]) -> Iterator[tuple[str, Gap]]:
    """Yields (name, share of the gap) for every cause of the gap: of a traced part, itself and the changes that act on
    it."""
    movers = {name: s for name, s in gap.moved_by.items() if name in changes}
    moved_s, left_s = sum(movers.values()), gap.time.s
    for name, s in movers.items():
        share_s = _movers_s(gap, moved_s) * s / moved_s
        left_s -= share_s
        yield name, _share(gap, share_s)
    yield gap.name, _share(gap, left_s) if movers else gap


def _movers_s(gap: Gap, moved_s: float) -> float:
    """Returns the seconds of a part's difference attributed to the changes that remove `moved_s` from it together."""
    if gap.time.s > 0 or not gap.expected_s:
        return max(0.0, min(gap.time.s, moved_s))
    return gap.time.s * min(1.0, moved_s / gap.expected_s)


def _share(gap: Gap, s: float) -> Gap:
    part = abs(s / gap.time.s) if gap.time.s else 0.0
    return replace(gap, time=Interval(s=s, deviation_s=part * gap.time.deviation_s))
