"""Splits a step's partition into the segments of one stacked bar, for the report and the terminal.

A row of `KINDS` is one segment: its words and how it is read from a partition. Its colour is that of the wall it is
lost to, as defined in the wall's file. Times are microseconds; the segments of a partition add up to its duration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from analyzers.diagnosis import Analysis, Partition, RankTime, TraceReport, Wall
from analyzers.walls import wall_kinds
from analyzers.wording import ACTIVITY_NAMES


class NoWall(StrEnum):
    """Family of time that belongs to no wall."""

    WAIT = "wait"  # launched, but waiting: a pipeline bubble, another stream, a slower rank
    UNKNOWN = "unknown"


Family = Wall | NoWall


@dataclass(frozen=True, kw_only=True)
class Kind:
    key: str
    words: str
    glyph: str  # letter in a bar of text
    read: Callable[[Partition], float]
    within: Callable[[Partition], Mapping[str, float]] = lambda step: {}  # its time by key, split further
    activity: str = ""  # words if overlapped time is included; empty: `words`
    unclaimed: NoWall = NoWall.UNKNOWN  # family of the segment if no wall of analyzers/walls lists it

    @property
    def family(self) -> Family:
        return next((wall for wall, kind in wall_kinds().items() if self.key in kind.segments), self.unclaimed)


@dataclass(frozen=True, kw_only=True)
class Segment:
    kind: Kind
    us: float


def _exposed(name: str) -> Callable[[Partition], float]:
    return lambda step: _communication(step).get(name, 0.0)


def _communication(step: Partition) -> dict[str, float]:
    """Returns exposed time by kind, adding up to the exposed total.

    Two kinds exposed at the same moment are each counted in full in the partition; a bar shows the moment once, so they
    share it in proportion.
    """
    exposed = {kind: time.exposed_us for kind, time in step.communication_by_kind.items() if time.exposed_us > 0}
    total = sum(exposed.values())
    if total <= step.exposed_communication_us:
        rest = step.exposed_communication_us - total
        return {**exposed, "other": exposed.get("other", 0.0) + rest}
    return {kind: us * step.exposed_communication_us / total for kind, us in exposed.items()}


def _sends(step: Partition) -> float:
    """Returns exposed PP send/recv time without waiting for a stage, which belongs to the bubble."""
    return max(_communication(step).get(PIPELINE, 0.0) - _waits_for_stage(step), 0.0)


def _waits_for_stage(step: Partition) -> float:
    return min(step.waiting_by_kind.get(PIPELINE, 0.0), _communication(step).get(PIPELINE, 0.0))


def _waiting(name: str) -> Callable[[Partition], Mapping[str, float]]:
    """Returns a function that splits a kind's exposed time into waiting for other ranks and transfer; {} if unknown,
    and for PP send/recv, whose waiting is in the bubble."""

    def within(step: Partition) -> Mapping[str, float]:
        exposed, waits = _communication(step).get(name, 0.0), step.waiting_by_kind.get(name, 0.0)
        if name == PIPELINE:
            return {}
        return {WAITS: min(waits, exposed), TRANSFER: max(exposed - waits, 0.0)} if waits else {}

    return within


def _recompute(step: Partition) -> float:
    """Returns compute time that repeats forward work; its communication is shown as communication."""
    return min(step.compute_by_class.get("recompute", 0.0), step.compute_us)


PIPELINE = "pp"
WAITS, TRANSFER = "waiting for late ranks", "transfer"
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
        glyph="c",
        read=lambda step: step.compute_us - _recompute(step),
        within=lambda step: {name: us for name, us in step.compute_by_class.items() if name != "recompute"},
    ),
    Kind(key="recompute", words="recompute", glyph="r", read=_recompute),
    *(
        Kind(
            key=name,
            words=f"exposed {words}",
            glyph=glyph,
            read=_sends if name == PIPELINE else _exposed(name),
            within=_waiting(name),
            activity=words,
        )
        for name, words, glyph in _COMMUNICATION
    ),
    Kind(
        key="copy",
        words="exposed copies",
        glyph="m",
        read=lambda step: step.exposed_copy_us,
        activity="copies",
    ),
    Kind(
        key="host",
        words="idle: host",
        glyph="h",
        read=lambda step: step.idle_by_cause.host_us,
        within=lambda step: step.host_by_activity,
    ),
    Kind(
        key="bubble",
        words="pipeline bubble",
        unclaimed=NoWall.WAIT,
        glyph="b",
        read=lambda step: step.idle_by_cause.bubble_us + _waits_for_stage(step),
    ),
    Kind(
        key="sync",
        words="idle: sync",
        unclaimed=NoWall.WAIT,
        glyph="s",
        read=lambda step: step.idle_by_cause.sync_us,
    ),
    Kind(
        key="unattributed",
        words="idle: unattributed",
        glyph="?",
        read=lambda step: step.idle_by_cause.unattributed_us,
    ),
)


CLASS_WORDS = {
    "grouped_gemm": "grouped GEMM",
    "gemm": "dense GEMM",
    "router": "router and permutation",
    "elementwise": "normalization and elementwise",
    "indexing": "sorting and indexing",
    "quantise": "quantize and cast",
    "graph": "inside CUDA graphs",
    "other": "other compute",
}
PARTS_WORDS = {**CLASS_WORDS, **ACTIVITY_NAMES}
NOISE_US = 1e-5  # 0.01 ns, below any clock's resolution: rounding of the sums


def families() -> tuple[Family, ...]:
    """Returns the walls that have segments, in order, then the families without a wall."""
    return (*(wall for wall, kind in wall_kinds().items() if kind.segments), *NoWall)


def segments(step: Partition) -> list[Segment]:
    """Returns the non-zero segments of a step, in drawing order."""
    return [Segment(kind=kind, us=us) for kind in KINDS if (us := kind.read(step)) > NOISE_US]


def mean_segments(steps: Sequence[Partition]) -> list[Segment]:
    """Returns the segments of the average step."""
    if not steps:
        return []
    means = ((kind, sum(kind.read(step) for step in steps) / len(steps)) for kind in KINDS)
    return [Segment(kind=kind, us=us) for kind, us in means if us > NOISE_US]


def compute_classes(steps: Sequence[Partition]) -> list[tuple[str, float]]:
    """Returns (class, microseconds) of the average step's compute, largest first."""
    return by_size(mean_of(steps, lambda step: step.compute_by_class))


def words_of(key: str) -> str:
    """Returns the words of a compute class or a host activity."""
    return PARTS_WORDS.get(key, key.replace("_", " "))


def within(kind: Kind, steps: Sequence[Partition]) -> list[tuple[str, float]]:
    """Returns (key, microseconds) of the times that make up a kind in the average step, largest first."""
    return [(name, us) for name, us in by_size(mean_of(steps, kind.within)) if us > NOISE_US]


def mean_of(steps: Sequence[Partition], read: Callable[[Partition], Mapping[str, float]]) -> dict[str, float]:
    """Returns the average over steps of each key of a mapping; a missing key counts as 0."""
    names = dict.fromkeys(name for step in steps for name in read(step))
    return {name: sum(read(step).get(name, 0.0) for step in steps) / len(steps) for name in names}


def by_size(times: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns (key, microseconds), largest first."""
    return sorted(times.items(), key=lambda row: (-row[1], row[0]))


def steps_of(trace: TraceReport) -> list[Partition]:
    """Returns the marked steps of a trace; its whole span if none is marked."""
    return trace.steps or [trace.span]


def counted_steps(trace: TraceReport) -> list[Partition]:
    """Returns the steps of averages: all except warm-up."""
    return [step for step in steps_of(trace) if step.name not in trace.warm_up]


def mean_step_us(trace: TraceReport) -> float:
    return mean_us(counted_steps(trace))


def judged_steps(analysis: Analysis) -> list[Partition]:
    """Returns the steps on which the verdict rests, each of its slowest rank; all steps of the slowest rank if the
    analysis does not record them."""
    steps = [
        next(step for step in steps_of(analysis.traces[judged.trace]) if step.name == judged.step)
        for judged in analysis.judged
    ]
    trace = slowest(analysis)
    return steps or (counted_steps(trace) if trace else [])


def mean_us(steps: Sequence[Partition]) -> float:
    """Returns the length of the average step, µs; 0 without steps."""
    return sum(step.duration_us for step in steps) / len(steps) if steps else 0.0


def rank_time(analysis: Analysis, trace: TraceReport) -> RankTime | None:
    """Returns the times of a trace's rank from the comparison of ranks; None if unknown."""
    same = (one for one in analysis.ranks if one.rank == trace.rank)
    return next((one for one in same if one.device is None or [one.device] == trace.devices), None)


def slowest(analysis: Analysis) -> TraceReport | None:
    """Returns the trace of the rank that is slowest in most judged steps; else that with the most own time per step,
    else with the longest steps. None without traces."""
    if analysis.judged:
        return analysis.traces[Counter(one.trace for one in analysis.judged).most_common(1)[0][0]]

    def length(trace: TraceReport) -> tuple[float, float]:
        known = rank_time(analysis, trace)
        return known.own_us if known else 0.0, mean_step_us(trace)

    return max(analysis.traces, key=length, default=None)
