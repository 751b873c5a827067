"""Tables of one accepted step, before and after: lost time by wall, the parts of the step, the fixes.

"Before" is the parent's trace, "after" the trial's. Predicted parts are those of the estimate as calibrated at the time
of the proposal. Traced parts are of one rank, the same before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analyzers.diagnosis import Analysis, TraceReport, Wall
from analyzers.walls import wall_kinds
from autotune.looks.acting import Changes, acting_changes
from autotune.looks.fix_names import parts_of, share_text, title_of
from autotune.looks.quantities import NONE, changes_text, duration, gain, gib, percent
from autotune.looks.segments import PIPELINE, counted_steps, mean_of, mean_segments, slowest
from autotune.looks.tables import Table
from autotune.report.path import PathStep
from policies.fixes import FIXES
from policies.situation import BUBBLE_PART, LOAD_PART, STAGES_PART, situation_of
from policies.trial import FixShare, Status, Trial
from trainer.recipe.knobs import KNOBS

NOTABLE = 0.005  # fraction of the longer step; smaller parts are left out
MAX_WALLS = 2  # walls in a row of the head's table
ARROW = " → "
WAITING = "sync"  # key of the segment in which a rank waits for other ranks
LOSSES = {  # walls, then causes of lost time that belong to no wall
    **{wall.value: wall.value for wall in wall_kinds()},
    BUBBLE_PART: "pipeline bubble",
    STAGES_PART: "uneven stages",
    LOAD_PART: "experts' load",
}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One rank before and after a change: the trace of the parent and that of the trial."""

    before: TraceReport
    after: TraceReport


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the step: the parts of the estimate and the segments of the trace that measure the same time."""

    words: str
    predicted: tuple[str, ...]
    traced: tuple[str, ...]


PARTS = (
    Part(words="compute, head, optimizer", predicted=("compute_s", "head_s", "optimizer_s"), traced=("compute",)),
    Part(words="recompute", predicted=("recompute_s",), traced=("recompute",)),
    Part(
        words="EP exposed",
        predicted=("ep_exposed_s",),
        traced=("ep_dispatch", "ep_combine", "ep_notify", "all_to_all"),
    ),
    Part(words="TP exposed", predicted=("tp_exposed_s",), traced=("tp",)),
    Part(words="CP exposed", predicted=("cp_exposed_s",), traced=("cp",)),
    Part(words="PP exposed", predicted=("pp_exposed_s",), traced=("pp",)),
    Part(words="pipeline bubble", predicted=("pp_bubble_s",), traced=("bubble",)),
    Part(words="DP exposed", predicted=("dp_exposed_s",), traced=("dp",)),
    Part(words="host", predicted=("host_s", "gc_s"), traced=("host",)),
    Part(words="waiting for other ranks", predicted=("sync_s",), traced=(WAITING,)),
    Part(words="copies", predicted=(), traced=("copy",)),
    Part(words="other", predicted=(), traced=("other", "unattributed")),
)


def pair_of(step: PathStep) -> Pair | None:
    """Returns the traces of one rank: the parent's slowest if the trial's traces have it, else the trial's slowest,
    else the first that both have. None if they have none in common."""
    before = step.parent.analysis if step.parent else None
    after = step.trial.analysis
    if before is None or after is None:
        return None
    preferred = [trace.rank for trace in (slowest(before), slowest(after)) if trace is not None]
    for rank in dict.fromkeys([*preferred, *(trace.rank for trace in before.traces)]):
        was, now = trace_of(before, rank), trace_of(after, rank)
        if was is not None and now is not None:
            return Pair(before=was, after=now)
    return None


def compared_traces(trials: Sequence[Trial]) -> list[tuple[Trial, TraceReport]]:
    """Returns each traced trial with the trace of one rank: the first trial's slowest, or the trial's own slowest if it
    has no trace of that rank."""
    rank: int | None = None
    found: list[tuple[Trial, TraceReport]] = []
    for trial in trials:
        slow = slowest(trial.analysis) if trial.analysis else None
        if trial.analysis is None or slow is None:
            continue
        rank = slow.rank if rank is None else rank
        found.append((trial, trace_of(trial.analysis, rank) or slow))
    return found


def trace_of(analysis: Analysis, rank: int | None) -> TraceReport | None:
    """Returns the trace of a rank; None if it was not traced."""
    return next((trace for trace in analysis.traces if trace.rank == rank), None)


def walls_table(step: PathStep) -> Table | None:
    """Returns lost time by wall, before and after, with its share of the step; None if neither was traced and the
    parent did not run out of memory."""
    rows = tuple(_wall_rows(step))
    columns = ("lost to", "before", "after")
    return Table(caption="Walls", columns=columns, rows=rows, numbers=(1, 2)) if rows else None


def parts_table(step: PathStep) -> Table | None:
    """Returns the parts of the step, predicted and traced, each before and after. None without a prediction by parts
    and without a rank traced in both."""
    predicted = _predicted_parts(step.trial)
    pair = pair_of(step)
    traced = (_traced_parts(pair.before), _traced_parts(pair.after)) if pair else None
    if predicted is None and traced is None:
        return None
    rank = f", rank {pair.before.rank}" if pair and pair.before.rank is not None else ""
    known = [(name, times) for name, times in (("predicted", predicted), (f"traced{rank}", traced)) if times]
    rows = tuple(_part_rows(predicted, traced))
    columns = ("part of the step", *(name for name, _ in known))
    return Table(caption="Parts", columns=columns, rows=rows, numbers=tuple(range(1, len(columns))))


def fixes_table(trial: Trial) -> Table | None:
    """Returns the fixes of a trial with the walls they act on and their predicted shares, and the interaction if there
    are several. None for the base recipe."""
    parts = parts_of(trial.proposal, trial.changes)
    if not parts:
        return None
    changes = acting_changes(trial.recipe, trial.changes)
    rows = [_fix_row(part, trial, changes) for part in parts]
    frees = any(part.frees_gib is not None for part in parts)
    if len(parts) > 1 and trial.proposal.interaction is not None and not frees:
        rows.append(("interaction", "", gain(trial.proposal.interaction), ""))
    columns = ("fix", "answers", "predicted memory" if frees else "predicted share", "changes")
    caption = "Fix" if len(parts) == 1 else "Fixes"
    return Table(caption=caption, columns=columns, rows=tuple(rows), numbers=(2,))


def largest_changes(step: PathStep) -> str:
    """Returns the walls whose lost time changed most: `host 12.0 s → 280 ms, memory 9.91 s → 1.71 s`; the peak if the
    parent ran out of memory, `not traced` without both traces, empty for the base recipe."""
    if step.parent is None:
        return ""
    if step.parent.status is Status.OOM:
        return f"memory: out of memory{ARROW}{_peak(step.trial)}"
    if step.parent.analysis is None or step.trial.analysis is None:
        return "not traced"
    before, after = lost_us(step.parent), lost_us(step.trial)
    names = sorted(before | after, key=lambda name: -abs(before.get(name, 0.0) - after.get(name, 0.0)))
    return ", ".join(
        f"{LOSSES[name]} {duration(before.get(name, 0.0))}{ARROW}{duration(after.get(name, 0.0))}"
        for name in names[:MAX_WALLS]
    )


def lost_us(trial: Trial) -> dict[str, float]:
    """Returns the lost time of an average traced step, µs, by wall and by causes that belong to no wall; zeros are left
    out."""
    found = trial.analysis.diagnosis.walls if trial.analysis else []
    walls = {finding.wall.value: finding.recoverable_us for finding in found}
    lost = walls | situation_of(trial).losses_outside_walls
    return {name: lost[name] for name in LOSSES if lost.get(name, 0.0) > 0}


def _wall_rows(step: PathStep) -> Iterator[tuple[str, ...]]:
    parent, trial = step.parent, step.trial
    if parent is None:
        return
    if parent.status is Status.OOM:
        yield "memory", "out of memory", _peak(trial)
    if parent.analysis is None and trial.analysis is None:
        return
    before, after = lost_us(parent), lost_us(trial)
    lengths = situation_of(parent).step_us, situation_of(trial).step_us
    for name in sorted(before | after, key=lambda name: -max(before.get(name, 0.0), after.get(name, 0.0))):
        if parent.status is Status.OOM and name == Wall.MEMORY.value:
            continue
        if max(before.get(name, 0.0), after.get(name, 0.0)) < NOTABLE * max(lengths):
            continue
        cells = (
            _lost(lost.get(name, 0.0), step_us) if one.analysis else "not traced"
            for one, lost, step_us in ((parent, before, lengths[0]), (trial, after, lengths[1]))
        )
        yield LOSSES[name], *cells


def _lost(us: float, step_us: float) -> str:
    return f"{duration(us)} ({percent(us / step_us, 0)})" if us > 0 and step_us else "0"


def _peak(trial: Trial) -> str:
    peaks = [max(outcome.peak_gib) for outcome in trial.outcomes if outcome.peak_gib]
    limit = next((outcome.limit_gib for outcome in trial.outcomes if outcome.limit_gib), None)
    of = f" of {gib(limit)}" if limit else ""
    return f"{gib(max(peaks))}{of}" if peaks else "runs"


Times = dict[str, float]  # microseconds


def _predicted_parts(trial: Trial) -> tuple[Times, Times] | None:
    reason = trial.proposal.reason
    parts = reason.figures.get("parts") if reason else None
    if not isinstance(parts, dict):  # the reason CLAIMED has a list instead: lost time by part of the wall
        return None
    return {name: 1e6 * was for name, (was, _) in parts.items()}, {name: 1e6 * now for name, (_, now) in parts.items()}


def _traced_parts(trace: TraceReport) -> Times:
    """Returns the segments of the average step, µs.

    Time in which collectives wait for late ranks counts as waiting, as in the estimate; waiting in pipeline receives is
    part of the bubble.
    """
    steps = counted_steps(trace)
    times = {segment.kind.key: segment.us for segment in mean_segments(steps)}
    waits = mean_of(steps, lambda step: step.waiting_by_kind)
    for kind, us in waits.items():
        moved = min(us, times.get(kind, 0.0)) if kind != PIPELINE else 0.0
        times[kind] = times.get(kind, 0.0) - moved
        times[WAITING] = times.get(WAITING, 0.0) + moved
    return times


def _part_rows(predicted: tuple[Times, Times] | None, traced: tuple[Times, Times] | None) -> Iterator[tuple[str, ...]]:
    totals = [sum(times.values()) for pair in (predicted, traced) if pair for times in pair]
    for part in PARTS:
        cells = (_sums(predicted, part.predicted), _sums(traced, part.traced))
        if max((us for pair in cells if pair for us in pair), default=0.0) >= NOTABLE * max(totals):
            yield part.words, *(_arrow(sums) for sums, pair in zip(cells, (predicted, traced), strict=True) if pair)
    yield "step", *(_arrow(_sums(pair, tuple(pair[0] | pair[1]))) for pair in (predicted, traced) if pair)


def _sums(pair: tuple[Times, Times] | None, names: Sequence[str]) -> tuple[float, float] | None:
    if pair is None or not names:
        return None
    before, after = (sum(times.get(name, 0.0) for name in names) for times in pair)
    return before, after


def _arrow(pair: tuple[float, float] | None) -> str:
    return NONE if pair is None else f"{_time(pair[0])}{ARROW}{_time(pair[1])}"


def _time(us: float) -> str:
    return duration(us) if us > 0 else "0"


def _fix_row(part: FixShare, trial: Trial, acting: Changes) -> tuple[str, ...]:
    changes = {knob: acting[knob] for knob in part.knobs if knob in acting}
    alone = part.fix not in FIXES and part.fix in KNOBS
    title = f"{part.fix} (a knob by itself)" if alone else title_of(part, trial.changes)
    known = part.predicted_share is not None or part.frees_gib is not None
    predicted = share_text(part) if known or trial.proposal.fixes else NONE
    return title, str(part.wall or NONE), predicted, changes_text(changes)
