"""Compares two analyses: the average step of the slowest rank of each, part by part.

`notes` name what the pair does not share (step markers, GPUs, a format); if their times are not comparable, shares are
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from analyzers.diagnosis import Analysis, Diagnosis, Partition, RankTime, TraceReport
from autotune.looks.quantities import NONE, UNMEASURED, duration, gain, percent
from autotune.looks.segments import KINDS, NOISE_US, counted_steps, mean_of, mean_step_us, slowest, steps_of, words_of

SAME = "A and B are the same: nothing can have moved; name two different traces or trials"
WITHIN = {"compute": "compute_class", "host": "host_activity"}  # part → the kind of moves that it consists of
UNMOVED = 0.01  # fraction of a step: smaller moves are not in the headline


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One time of the average step in A and in B.

    A side is null if it does not list the time (a kernel not among its longest); `moved_us` is then a bound, the time
    of the other side.
    """

    of: str  # part | compute_class | host_activity | communication (hidden or exposed) | kernel | waiting
    name: str
    a_us: float | None
    b_us: float | None
    moved_us: float
    moved_share: float  # its share of the step in B minus that in A


class Untraced(msgspec.Struct, frozen=True, kw_only=True):
    """The median steps that the bursts of A and B measured without a profiler, and the fraction by which their traced
    steps are longer."""

    a_us: float
    b_us: float
    profiler_of_a: float
    profiler_of_b: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `compare --json`. `moved` is sorted, largest first; by share if times do not compare. `untraced` is
    null unless the steps of A and B were also measured without a profiler."""

    schema: int = 1
    a: Analysis
    b: Analysis
    moved: list[Move] = []
    notes: list[str] = []
    times_compare: bool = True
    untraced: Untraced | None = None

    def of(self, what: str) -> list[Move]:
        return [move for move in self.moved if move.of == what]


def compared(
    a: Analysis, b: Analysis, *, same: bool = False, steps_us: tuple[float | None, float | None] = (None, None)
) -> Comparison:
    """Returns both analyses with the differences between them; none if one has no trace.

    same: A and B are one path; steps_us: the median step of each measured without a profiler, if known.
    """
    one, other = slowest(a), slowest(b)
    if one is None or other is None:
        without = [side for side, trace in (("A", one), ("B", other)) if trace is None]
        return Comparison(a=a, b=b, notes=[f"{' and '.join(without)} left no trace: nothing to compare"])
    times_compare = bool(one.steps) == bool(other.steps)
    moves = sorted((*_moves(one, other), *_waits(a, b)), key=lambda move: _size(move, times_compare))
    untraced = _untraced(one, other, *steps_us) if times_compare else None
    notes = [*([SAME] if same else []), *_notes(a, b, one, other), *_profiler_words(untraced)]
    return Comparison(a=a, b=b, moved=moves, notes=notes, times_compare=times_compare, untraced=untraced)


def _untraced(one: TraceReport, other: TraceReport, a_us: float | None, b_us: float | None) -> Untraced | None:
    if not (a_us and b_us and one.steps and other.steps):
        return None
    longer = mean_step_us(one) / a_us - 1, mean_step_us(other) / b_us - 1
    return Untraced(a_us=a_us, b_us=b_us, profiler_of_a=longer[0], profiler_of_b=longer[1])


def _profiler_words(untraced: Untraced | None) -> Iterator[str]:
    if untraced is not None:
        costs = f"{gain(untraced.profiler_of_a)} in A, {gain(untraced.profiler_of_b)} in B"
        yield f"traced steps vs the median of those without the profiler: {costs}; the parts are of traced steps"


def change(found: Comparison) -> tuple[str, str]:
    """Returns `−20.1 %` and `step 175 ms → 140 ms`: how the step changed, without the profiler if that was measured;
    words if the times do not compare."""
    one, other = slowest(found.a), slowest(found.b)
    if one is None or other is None:
        return "no figure", found.notes[0]
    if not found.times_compare:
        return "shares", f"{_whole(one)} against {_whole(other)}: shares can be compared, times cannot"
    was, now = mean_step_us(one), mean_step_us(other)
    what = "step" if one.steps else "whole trace"
    traced = gain(now / was - 1 if was else None), f"{what} {duration(was)} → {duration(now)}"
    if found.untraced is None:
        return traced
    a_us, b_us = found.untraced.a_us, found.untraced.b_us
    text = f"step {duration(a_us)} → {duration(b_us)} without the profiler; traced {traced[1]}, {traced[0]}"
    return gain(b_us / a_us - 1), text


def headline(found: Comparison) -> str:
    """Returns `step 175 ms → 140 ms (−20.1 %): mostly idle: host −38.6 ms`."""
    one = slowest(found.a)
    figure, text = change(found)
    if one is None or not found.moved or not found.times_compare:
        return text
    parts = [move for move in found.of("part") if abs(move.moved_us) >= UNMOVED * mean_step_us(one)]
    moved = _mostly(found, parts[0]) if parts else f"no part moved by {100 * UNMOVED:.0f} % of the step"
    return f"{figure}, {text}: {moved}" if found.untraced else f"{text} ({figure}): {moved}"


def _mostly(found: Comparison, part: Move) -> str:
    return f"mostly {_kind_words(part.name)} {signed(part.moved_us)}{_of_which(found, part)}"


def moved_parts(found: Comparison, *, least: float, least_inner: float = 0.0, mark: str) -> Iterator[tuple[str, Move]]:
    """Yields (words, move) of each part, followed by those of its inner moves, with `mark` before their words.

    least: smallest share of A's step that a part has on one side; least_inner: smallest share by which an inner move
    changed.
    """
    one = slowest(found.a)
    step_us = mean_step_us(one) if one else 0.0
    for part in found.of("part"):
        if max(part.a_us or 0.0, part.b_us or 0.0) >= least * step_us:
            yield _kind_words(part.name), part
            for inner in within_part(found, part):
                if abs(inner.moved_us) >= least_inner * step_us:
                    yield f"{mark}{words_of(inner.name)}", inner


def waiting_words(found: Comparison) -> str:
    """Returns the longest waiting for other ranks in A and in B; empty unless both are known."""
    waits = (f"{duration(move.a_us)} → {duration(move.b_us)} per step" for move in found.of("waiting"))
    return next((f"the rank that waits longest for the others: {words}" for words in waits), "")


def verdict_words(diagnosis: Diagnosis) -> str:
    """Returns `wall host, up to 43.1 %`; the reason if the verdict has no recoverable time."""
    finding = diagnosis.finding(diagnosis.wall)
    if finding is None or finding.recoverable_us <= 0:
        return f"wall {diagnosis.wall.value}: {diagnosis.because}"
    return f"wall {diagnosis.wall.value}, up to {percent(finding.share)}"


def wall_rows(found: Comparison) -> Iterator[tuple[str, str, str, str, str]]:
    """Yields each wall's name, its recoverable times in A and B, and its shares in A and B."""
    sides = (found.a.diagnosis, found.b.diagnosis)
    walls = dict.fromkeys(one.wall for side in sides for one in side.walls if one.recoverable_us > 0)
    for wall in walls:
        a, b = (side.finding(wall) for side in sides)
        times = [duration(one.recoverable_us) if one else NONE for one in (a, b)]
        shares = [percent(one.share) if one else NONE for one in (a, b)]
        yield wall.value, times[0], times[1], shares[0], shares[1]


def within_part(found: Comparison, part: Move) -> list[Move]:
    """Returns the moves that make up a part, in order; recompute is left out, since it is a part itself."""
    return [move for move in found.of(WITHIN.get(part.name, "")) if move.name != "recompute"]


def _of_which(found: Comparison, part: Move) -> str:
    """Returns ` (attention +3.1 ms)`: the largest difference within a part, if it has the sign of the part's difference
    and at least half its size; else ''."""
    same_way = [move for move in within_part(found, part) if 2 * move.moved_us / part.moved_us >= 1]
    return f" ({words_of(same_way[0].name)} {signed(same_way[0].moved_us)})" if same_way else ""


def signed(us: float) -> str:
    sign = "+" if us > 0 else "−" if us < 0 else ""
    return sign + duration(abs(us))


def _whole(trace: TraceReport) -> str:
    return f"{'an average step' if trace.steps else 'a whole trace'} of {duration(mean_step_us(trace))}"


def _kind_words(key: str) -> str:
    return next(kind.words for kind in KINDS if kind.key == key)


def _size(move: Move, times_compare: bool) -> tuple[float, str, str]:
    return -abs(move.moved_us if times_compare else move.moved_share), move.of, move.name


# kind of move → how it is read from a partition
READS: Mapping[str, Callable[[Partition], Mapping[str, float]]] = {
    "part": lambda step: {kind.key: kind.read(step) for kind in KINDS},
    "compute_class": lambda step: step.compute_by_class,
    "host_activity": lambda step: step.host_by_activity,
    "communication": lambda step: {kind: time.busy_us for kind, time in step.communication_by_kind.items()},
}


def _moves(one: TraceReport, other: TraceReport) -> Iterator[Move]:
    steps = mean_step_us(one), mean_step_us(other)
    for of, read in READS.items():
        was, now = (mean_of(counted_steps(trace), read) for trace in (one, other))
        for name in dict.fromkeys((*was, *now)):
            move = _move(of, name, was.get(name, 0.0), now.get(name, 0.0), steps)
            if max(move.a_us or 0.0, move.b_us or 0.0) > NOISE_US:
                yield move
    if one.kernels and other.kernels:
        was_of, now_of = (_by_name(trace) for trace in (one, other))
        for name in dict.fromkeys((*was_of, *now_of)):
            yield _move("kernel", name, was_of.get(name), now_of.get(name), steps)


def _waits(a: Analysis, b: Analysis) -> Iterator[Move]:
    """Yields the change of the longest waiting on any rank: it shows imbalance that the slowest rank does not."""
    longest = [max(side.ranks, key=lambda rank: rank.waiting_us, default=None) for side in (a, b)]
    was, now = (rank.waiting_us if rank else None for rank in longest)
    if was is not None and now is not None and max(was, now) > NOISE_US:
        yield _move("waiting", "longest", was, now, (_step_us(longest[0]), _step_us(longest[1])))


def _step_us(rank: RankTime | None) -> float:
    return rank.step_us if rank else 0.0


def _by_name(trace: TraceReport) -> dict[str, float]:
    """Returns each kernel's time per step; one name may be in several classes."""
    count = len(steps_of(trace))
    times: dict[str, float] = {}
    for kernel in trace.kernels:
        times[kernel.name] = times.get(kernel.name, 0.0) + kernel.total_us / count
    return times


def _move(of: str, name: str, was: float | None, now: float | None, steps: tuple[float, float]) -> Move:
    before, after = was or 0.0, now or 0.0
    moved = after - before
    shares = [us / step if step else 0.0 for us, step in zip((before, after), steps, strict=True)]
    return Move(
        of=of,
        name=name,
        a_us=was,
        b_us=now,
        moved_us=moved if abs(moved) > NOISE_US else 0.0,
        moved_share=shares[1] - shares[0],
    )


def _notes(a: Analysis, b: Analysis, one: TraceReport, other: TraceReport) -> Iterator[str]:
    """Yields a note on simulated figures, and one on each thing that limits the comparison."""
    if simulated := [name for name, side in (("A", a), ("B", b)) if side.simulated]:
        yield f"{' and '.join(simulated)} simulated: {UNMEASURED}"
    if bool(one.steps) != bool(other.steps):
        without, steps = ("A", len(other.steps)) if not one.steps else ("B", len(one.steps))
        yield (
            f"{without} has no step markers: its whole trace is compared with the average of the other's {steps}; "
            "compare shares, and record with a schedule (prof.step()) to compare times"
        )
    elif not one.steps:
        yield "neither has marked steps: whole traces are compared"
    elif len(counted_steps(one)) != len(counted_steps(other)):
        yield f"A averages {len(counted_steps(one))} steps, B {len(counted_steps(other))}{_left_out(one, other)}"
    if len(a.traces) != len(b.traces):
        yield f"A has {len(a.traces)} traces, B {len(b.traces)}: each is represented by its slowest rank"
    places = ["GPUs" if trace.devices else "CPUs" for trace in (one, other)]
    if places[0] != places[1]:
        yield f"A ran on {places[0]}, B on {places[1]}: compute and host time are not comparable between them"
    if one.format != other.format:
        yield f"A is a {one.format} trace, B {other.format}: what the host did is recorded differently"
    yield from _lost_events(("A", a), ("B", b))


def _left_out(one: TraceReport, other: TraceReport) -> str:
    sides = [f"{', '.join(trace.warm_up)} of {name}" for name, trace in (("A", one), ("B", other)) if trace.warm_up]
    return f": {' and '.join(sides)} left out as warm-up" if sides else ""


def _lost_events(*sides: tuple[str, Analysis]) -> Iterator[str]:
    """Yields a note for each side whose traces lost events: missing events look like differences."""
    for name, analysis in sides:
        lost: Sequence[str] = [f"{d.count} {d.what} ({d.why})" for t in analysis.traces for d in t.coverage.dropped]
        if lost:
            yield f"{name} has lost {lost[0]}{f' and {len(lost) - 1} more' if len(lost) > 1 else ''}"
