"""Compares the ranks of a job: own work, waiting for other ranks, idle time."""

from __future__ import annotations

from markupsafe import Markup

from analyzers.diagnosis import Analysis, RankTime
from analyzers.wording import part_name
from autotune.diagnose.terminal import late_words, rank_number
from autotune.looks.quantities import NONE, duration
from autotune.looks.segments import rank_time, steps_of
from autotune.looks.stacks import Piece, Stack, bar, legend
from autotune.looks.svg import tag
from autotune.looks.tables import Table

RANKS = 64  # most ranks drawn and listed: those with the most own time


def rank_bars(analysis: Analysis) -> Markup | None:
    """Draws one bar per rank on one scale; None if fewer than two ranks are known."""
    ranks = _shown(analysis)
    if not ranks:
        return None
    stacks = [_stack(rank, _idle_us(analysis, rank)) for rank in ranks]
    longest = max(stack.total for stack in stacks) or 1.0
    left = len(analysis.ranks) - len(ranks)
    note = tag("p", f"The {len(ranks)} ranks with most own time; {left} more are not drawn.", class_="note")
    bars = [bar(stack, longest=longest) for stack in stacks]
    return Markup("").join([legend(p for s in stacks for p in s.pieces), *bars, *([note] if left else [])])


def rank_table(analysis: Analysis) -> Table:
    rows = [
        (
            rank_number(rank),
            duration(rank.step_us),
            duration(rank.own_us),
            duration(rank.waiting_us),
            ", ".join(f"{part_name(kind)} {duration(us)}" for kind, us in rank.waiting_by_kind.items()) or NONE,
            duration(rank.expert_compute_us),
            late_words(rank) or NONE,
        )
        for rank in _shown(analysis)
    ]
    header = ("rank", "step", "own", "waits", "in", "expert compute", "comes late")
    return Table(columns=header, rows=tuple(rows), numbers=(0, 1, 2, 3, 5))


def _shown(analysis: Analysis) -> list[RankTime]:
    if len(analysis.ranks) < 2:
        return []
    most = sorted(analysis.ranks, key=lambda rank: (-rank.own_us, rank.rank, rank.device or 0))[:RANKS]
    return sorted(most, key=lambda rank: (rank.rank, rank.device or 0))


def _idle_us(analysis: Analysis, rank: RankTime) -> float:
    steps = [step for trace in analysis.traces if rank_time(analysis, trace) is rank for step in steps_of(trace)]
    return sum(step.idle_us for step in steps) / len(steps) if steps else 0.0


def _stack(rank: RankTime, idle_us: float) -> Stack:
    idle = min(idle_us, rank.own_us)
    parts = (("own", "own work", rank.own_us - idle), ("idle", "idle", idle), ("waiting", "waits", rank.waiting_us))
    return Stack(
        label=f"rank {rank_number(rank)} · {duration(rank.step_us)}",
        pieces=tuple(Piece(key=key, words=words, value=us, text=duration(us)) for key, words, us in parts),
    )
