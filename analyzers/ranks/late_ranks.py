"""The ranks that others wait for, each with the cause of its lateness: its host, its experts' load, a slower device.

A late rank's work is compared with that of the ranks that waited for it, since they left a collective together. Longer
expert compute is load only if the compute that does not depend on routing is not longer as well and, if NCCL's
arguments have the sizes of the exchanges, if the rank received more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from analyzers.kernel_classes import GEMM, GROUPED_GEMM, KINDS
from analyzers.names.host_activities import ALLOCATOR
from analyzers.one_rank.digest import Digest
from analyzers.one_rank.progress import COPIES, DENSE, EXPERTS, ROUTED
from analyzers.one_rank.progress import unrouted as unrouted_classes
from analyzers.one_rank.rank_step import BUBBLE_PART, HOST_PART, RankStep
from analyzers.ranks.causes import UNKNOWN, Caused, Causes
from analyzers.ranks.stragglers import MIN_GROWTH_RATIO, MIN_OTHER_WORK, Place
from analyzers.wording import ms, part_name

EXCHANGES = ("ep_dispatch", "all_to_all")  # exchanges whose sizes give the number of tokens that a rank receives
# a device is slower if work that does not depend on routing takes longer by this fraction than on the others
MIN_SLOWDOWN = 0.02
# load explains longer experts only if the rank receives more tokens than the others by at least this fraction
MIN_MORE_TOKENS = 0.05
MAIN_CAUSE = 0.5  # least share of the waiting for a rank that makes a cause its main cause
NEARLY_ALL = 0.95  # least share of the waiting for a rank that is shown as all
MIN_SHOWN_RATIO = 1.1  # a smaller ratio of times is not shown
MAX_SHOWN_RATIO = 10.0  # a larger ratio of times is not shown: the others hardly do this work at all
MIN_NAMED_SHARE = 0.25  # share of the waiting for the rank that is waited for most: a rank with less is not named
NAMED_FOR = 0.6  # least share of the waiting for a rank for which it is named under a cause


class LateBy(StrEnum):
    """The cause of a rank's lateness."""

    HOST = "late_host"
    EXPERTS = "experts_load"
    DEVICE = "slow_device"
    UNEVEN_WORK = "uneven_work"
    ALLOCATOR = "late_allocator"
    TRANSFERS = "slow_links"
    COPIES = "late_copies"
    BUBBLE = "bubble"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class LateRank:
    """A rank that others wait for.

    us: by cause, the waiting per step of the rank that waits for it most; part: the part of its main cause that exceeds
    the others' most; times_as_long: the ratio of its time for that part to theirs; more_tokens: the ratio of what it
    receives to what they receive, None if no size is known.
    """

    place: Place
    us: Mapping[LateBy, float]
    part: str
    times_as_long: float
    more_tokens: float | None = None

    @property
    def waited_us(self) -> float:
        return sum(self.us.values())

    @property
    def cause(self) -> LateBy:
        """Returns the cause of most of the waiting; UNKNOWN if no cause explains half of it."""
        most = max(self.us, key=lambda cause: self.us[cause])
        return most if self.us[most] >= MAIN_CAUSE * self.waited_us else LateBy.UNKNOWN

    def __str__(self) -> str:
        waited = f"{self.place} is waited for {ms(self.waited_us)} ms per step"
        if self.cause is LateBy.UNKNOWN:
            return waited
        if self.cause is LateBy.BUBBLE:
            return f"{waited}, while it waits for its pipeline itself"
        longer = MIN_SHOWN_RATIO < self.times_as_long < MAX_SHOWN_RATIO
        times = f", {self.times_as_long:.2g}x as long as the ranks that wait" if longer else ""
        tokens = self.more_tokens is not None and self.cause is LateBy.EXPERTS
        us = self.us[self.cause]
        how_much = "all" if us >= NEARLY_ALL * self.waited_us else f"{ms(us)} ms"
        return (
            f"{waited}, {how_much} of it for {part_name(self.part)}{times}"
            f"{f', with {self.more_tokens:.2g}x the tokens' if tokens else ''}"
        )


COMPUTE_PARTS = (EXPERTS, DENSE, ROUTED)
COMPUTING = (LateBy.EXPERTS, LateBy.DEVICE, LateBy.UNEVEN_WORK)


@dataclass(frozen=True, kw_only=True)
class Lateness:
    """Waiting of ranks for others, without pipeline bubbles: by cause, per step and averaged over ranks; and the late
    ranks, the one that is waited for most first."""

    us: Mapping[LateBy, float] = field(default_factory=dict)
    ranks: Sequence[LateRank] = ()

    @property
    def total_us(self) -> float:
        return sum(self.us.values())

    def share(self, cause: LateBy) -> float:
        """Returns the share of a cause in all waiting, 0..1."""
        return self.us.get(cause, 0.0) / self.total_us if self.total_us > 0 else 0.0

    def late_by(self, cause: LateBy) -> list[LateRank]:
        """Returns the ranks worth naming for a cause, the one that is waited for most first."""
        found = [one for one in self.ranks if one.us.get(cause, 0.0) > 0]
        most = max((one.us[cause] for one in found), default=0.0)
        named = [one for one in found if one.us[cause] >= max(MIN_NAMED_SHARE * most, NAMED_FOR * one.waited_us)]
        return sorted(named, key=lambda one: -one.us[cause])

    def over(self, steps: Sequence[RankStep]) -> Lateness:
        """Returns the same late ranks with the waiting in these steps.

        Waiting for longer compute is divided among causes in the late ranks' proportions.
        """
        computing = {cause: sum(one.us.get(cause, 0.0) for one in self.ranks) for cause in COMPUTING}
        whole = sum(computing.values())
        of_compute = {cause: us / whole for cause, us in computing.items()} if whole > 0 else {}
        found: dict[LateBy, float] = {}
        for step in steps:
            for part, us in step.waiting_by_cause.items():
                shares = of_compute if part in COMPUTE_PARTS and of_compute else {_cause_of(part): 1.0}
                for cause, share in shares.items():
                    found[cause] = found.get(cause, 0.0) + share * us / len(steps)
        found.pop(LateBy.BUBBLE, None)
        return Lateness(us={cause: us for cause, us in found.items() if us > 0}, ranks=self.ranks)


def lateness(
    ranks: Sequence[Digest], named: Sequence[Place], table: Sequence[Sequence[RankStep]], found: Sequence[Causes]
) -> Lateness:
    """Computes why ranks wait for others. table: the S steps of R ranks, with their waiting by part."""
    if len(ranks) < 2:
        return Lateness()
    tokens, dense = [_received(rank) for rank in ranks], unrouted_classes(on_cpu=any(rank.on_cpu for rank in ranks))
    late = [_late_rank(place, named[place], causes, table, tokens, dense) for place, causes in enumerate(found)]
    most_first = sorted((one for one in late if one is not None), key=lambda one: -one.waited_us)
    return Lateness(ranks=most_first).over([step for row in table for step in row])


def _cause_of(part: str) -> LateBy:
    """Returns the cause of lateness that a part other than compute shows."""
    named = {COPIES: LateBy.COPIES, BUBBLE_PART: LateBy.BUBBLE, f"{HOST_PART}{ALLOCATOR}": LateBy.ALLOCATOR}
    named |= dict.fromkeys(KINDS, LateBy.TRANSFERS)
    return named.get(part) or (LateBy.HOST if part.startswith(HOST_PART) else LateBy.UNKNOWN)


def _late_rank(
    place: int,
    named: Place,
    causes: Causes,
    table: Sequence[Sequence[RankStep]],
    tokens: Sequence[float | None],
    unrouted: Sequence[str],
) -> LateRank | None:
    steps = len(table[place])
    caused = {other: one for other, one in causes.caused.items() if one.us[:-1].sum() > 0}
    if not caused:
        return None
    longest_waiter = max(caused, key=lambda other: float(caused[other].us[:-1].sum()))
    everyone = sum(caused.values(), start=_nothing(len(causes.parts)))
    most = dict(zip(causes.parts, (caused[longest_waiter].us / steps).tolist(), strict=True))
    more = _more_tokens(tokens[place], [tokens[other] for other in caused])
    computing = _longer_compute(
        causes.parts, everyone, table[place], [table[other] for other in caused], more, unrouted
    )
    us: dict[LateBy, float] = {}
    for part, waited in most.items():
        cause = computing if part in COMPUTE_PARTS else _cause_of(part)
        if part != UNKNOWN and waited > 0:
            us[cause] = us.get(cause, 0.0) + waited
    main = max(us, key=lambda cause: us[cause])
    of_main = [
        part for part in most if part != UNKNOWN and (computing if part in COMPUTE_PARTS else _cause_of(part)) is main
    ]
    part = max(of_main, key=lambda name: most[name])
    at = causes.parts.index(part)
    pair = caused[longest_waiter]
    return LateRank(
        place=named,
        us=us,
        part=part,
        times_as_long=float(pair.late_did_us[at] / pair.did_us[at]) if pair.did_us[at] > 0 else np.inf,
        more_tokens=more,
    )


def _nothing(parts: int) -> Caused:
    return Caused(us=np.zeros(parts), late_did_us=np.zeros(parts), did_us=np.zeros(parts))


def _longer_compute(
    parts: Sequence[str],
    caused: Caused,
    late: Sequence[RankStep],
    others: Sequence[Sequence[RankStep]],
    more_tokens: float | None,
    unrouted: Sequence[str],
) -> LateBy:
    """Returns why a late rank computes longer.

    That is its experts' load, or its device if all of its compute takes longer or it received no more tokens. If other
    parts than the experts are longer, it is the device, or uneven sequences if only attention is. UNKNOWN if the
    compute that is longer before these collectives is not longer over the whole step.
    """
    at = {part: parts.index(part) for part in COMPUTE_PARTS if part in parts}
    us = {part: float(caused.us[k]) for part, k in at.items()}
    dense, own_dense = _growth(late, others, unrouted)
    if us.get(EXPERTS, 0.0) > 0 and us[EXPERTS] >= us.get(DENSE, 0.0):
        did = float(caused.did_us[at[EXPERTS]])
        experts = float(caused.late_did_us[at[EXPERTS]]) / did - 1 if did > 0 else np.inf
        experts_us = np.mean([step.compute_by_class.get(GROUPED_GEMM, 0.0) for step in late])
        comparable = bool(own_dense >= MIN_OTHER_WORK * experts_us)
        all_slower = comparable and dense >= max(MIN_SLOWDOWN, MIN_GROWTH_RATIO * experts)
        same_tokens = more_tokens is not None and more_tokens < 1 + MIN_MORE_TOKENS
        return LateBy.DEVICE if all_slower or same_tokens else LateBy.EXPERTS
    products, own_products = _growth(late, others, (GEMM, GROUPED_GEMM))
    if dense < MIN_SLOWDOWN:
        return LateBy.UNKNOWN
    comparable = own_products >= MIN_OTHER_WORK * own_dense
    as_fast = comparable and products < max(MIN_SLOWDOWN, MIN_GROWTH_RATIO * dense)
    return LateBy.UNEVEN_WORK if as_fast else LateBy.DEVICE


def _growth(
    late: Sequence[RankStep], others: Sequence[Sequence[RankStep]], classes: Sequence[str]
) -> tuple[float, float]:
    """Returns by what fraction some classes take the late rank longer per step than the median of the others, and the
    late rank's time for them."""

    def takes(steps: Sequence[RankStep]) -> float:
        return float(np.mean([sum(step.compute_by_class.get(name, 0.0) for name in classes) for step in steps]))

    own, middle = takes(late), float(np.median([takes(steps) for steps in others]))
    return (own / middle - 1 if middle > 0 else 0.0), own


def _received(rank: Digest) -> float | None:
    """Returns the bytes of the exchanges that bring a rank its tokens; None if a size is not known."""
    found = rank.collectives
    sizes = [call.size_bytes if call.kind in EXCHANGES else 0 for call in found.calls]
    if not len(found.call) or None in sizes or not any(sizes):
        return None
    return float(np.array(sizes, dtype=np.float64)[found.call].sum())


def _more_tokens(own: float | None, others: Sequence[float | None]) -> float | None:
    known = [tokens for tokens in others if tokens]
    return own / float(np.median(known)) if own and len(known) == len(others) else None
