"""A step's partition as the segments of one stacked bar: what the report draws and the terminal prints.

One row of `KINDS` is one segment: its words, the family it is coloured by, and how it is read from a
partition. The families are the walls a segment is lost to, so a colour means the same thing everywhere. Times
are microseconds; the segments of a partition add up to its duration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from analyzers.diagnosis import Analysis, Partition, TraceReport


class Family(StrEnum):
    COMPUTE = "compute"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    HOST = "host"
    WAIT = "wait"  # launched, but waiting: a pipeline bubble, another stream, a slower rank; no wall of this rank
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Kind:
    key: str
    words: str
    family: Family
    glyph: str  # its letter in a bar of plain characters
    read: Callable[[Partition], float]


@dataclass(frozen=True, kw_only=True)
class Segment:
    kind: Kind
    us: float


def _exposed(name: str) -> Callable[[Partition], float]:
    return lambda step: _communication(step).get(name, 0.0)


def _communication(step: Partition) -> dict[str, float]:
    """Exposed time by kind, adding up to the exposed total.

    Two kinds exposed at the same moment are each counted in full in the partition; a bar has room for the
    moment once, so they share it in proportion.
    """
    exposed = {kind: time.exposed_us for kind, time in step.communication_by_kind.items() if time.exposed_us > 0}
    total = sum(exposed.values())
    if total <= step.exposed_communication_us:
        rest = step.exposed_communication_us - total
        return {**exposed, "other": exposed.get("other", 0.0) + rest}
    return {kind: us * step.exposed_communication_us / total for kind, us in exposed.items()}


def _recompute(step: Partition) -> float:
    """The part of the compute that is forward work done again; its communication is shown as communication."""
    return min(step.compute_by_class.get("recompute", 0.0), step.compute_us)


_COMMUNICATION = (
    ("ep_dispatch", "EP dispatch", "d"),
    ("ep_combine", "EP combine", "e"),
    ("ep_notify", "EP notify", "n"),
    ("all_to_all", "all-to-all", "a"),
    ("tp", "TP", "t"),
    ("cp", "CP", "k"),
    ("pp", "PP send/recv", "p"),
    ("dp", "DP", "g"),
    ("other", "other communication", "x"),
)

KINDS: tuple[Kind, ...] = (
    Kind(
        key="compute",
        words="compute",
        family=Family.COMPUTE,
        glyph="c",
        read=lambda step: step.compute_us - _recompute(step),
    ),
    Kind(key="recompute", words="recompute", family=Family.MEMORY, glyph="r", read=_recompute),
    *(
        Kind(key=name, words=f"exposed {words}", family=Family.COMMUNICATION, glyph=glyph, read=_exposed(name))
        for name, words, glyph in _COMMUNICATION
    ),
    Kind(key="copy", words="exposed copies", family=Family.MEMORY, glyph="m", read=lambda step: step.exposed_copy_us),
    Kind(
        key="host",
        words="idle: host",
        family=Family.HOST,
        glyph="h",
        read=lambda step: step.idle_by_cause.host_us,
    ),
    Kind(
        key="bubble",
        words="idle: pipeline bubble",
        family=Family.WAIT,
        glyph="b",
        read=lambda step: step.idle_by_cause.bubble_us,
    ),
    Kind(
        key="sync",
        words="idle: sync",
        family=Family.WAIT,
        glyph="s",
        read=lambda step: step.idle_by_cause.sync_us,
    ),
    Kind(
        key="unattributed",
        words="idle: unattributed",
        family=Family.UNKNOWN,
        glyph="?",
        read=lambda step: step.idle_by_cause.unattributed_us,
    ),
)


def segments(step: Partition) -> list[Segment]:
    """The parts of a step that took any time, in drawing order."""
    return [Segment(kind=kind, us=us) for kind in KINDS if (us := kind.read(step)) > 0]


def mean_segments(steps: Sequence[Partition]) -> list[Segment]:
    """The segments of the average step."""
    if not steps:
        return []
    means = ((kind, sum(kind.read(step) for step in steps) / len(steps)) for kind in KINDS)
    return [Segment(kind=kind, us=us) for kind, us in means if us > 0]


def compute_classes(steps: Sequence[Partition]) -> list[tuple[str, float]]:
    """What the average step computes, (class, microseconds), largest first."""
    names = {name for step in steps for name in step.compute_by_class}
    means = [(name, sum(step.compute_by_class.get(name, 0.0) for step in steps) / len(steps)) for name in names]
    return sorted(means, key=lambda row: (-row[1], row[0]))


def steps_of(trace: TraceReport) -> list[Partition]:
    """The marked steps of a trace; its whole span where none was marked."""
    return trace.steps or [trace.span]


def mean_step_us(trace: TraceReport) -> float:
    steps = steps_of(trace)
    return sum(step.duration_us for step in steps) / len(steps)


def slowest(analysis: Analysis) -> TraceReport | None:
    """The rank whose average step is longest: the one the others wait for."""
    return max(analysis.traces, key=mean_step_us, default=None)
