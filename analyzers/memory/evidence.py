"""Writes the evidence on the ranks' memory: the fullest rank, the phases or call sites that hold its peak, its
allocator's retries."""

from __future__ import annotations

from collections.abc import Sequence

from analyzers.diagnosis import MemoryUse
from analyzers.memory.phases import OUTSIDE
from analyzers.wording import percent

NEARLY_FULL = 0.95  # share of the device's memory above which the allocator has little choice
MIN_SHOWN_SHARE = 0.05  # share of the peak: a smaller part or loss gets no line
MAX_HOLDERS = 4

RankMemory = tuple[int | None, MemoryUse]


def fullest(memory: Sequence[RankMemory]) -> RankMemory | None:
    """Returns the rank nearest to its limit; without limits the one with the highest peak."""
    return max(memory, key=lambda one: (_filled(one[1]), one[1].peak_gib), default=None)


def memory_evidence(memory: Sequence[RankMemory]) -> list[str]:
    """Returns lines on the fullest rank, and on every rank that ran out of memory or whose allocator retried."""
    hottest = fullest(memory)
    if hottest is None:
        return []
    pressed = [line for one in memory for line in _pressed(*one)]
    return [*pressed, _peak(*hottest), *_held(hottest[1]), *_unused(hottest[1])]


def _filled(use: MemoryUse) -> float:
    """Returns the share of the device's memory in use, 0..1; 0 if its size is not known."""
    return max(use.reserved_gib or 0.0, use.peak_gib) / use.limit_gib if use.limit_gib else 0.0


def _who(rank: int | None) -> str:
    return "the rank" if rank is None else f"rank {rank}"


def _of_limit(gib: float, use: MemoryUse) -> str:
    return f"{gib:.2f} GiB" if use.limit_gib is None else f"{gib:.2f} of {use.limit_gib:.2f} GiB"


def _pressed(rank: int | None, use: MemoryUse) -> list[str]:
    """Returns lines on failed allocations and on retries; the latter say if the device is nearly full."""
    lines = []
    if use.out_of_memory:
        lines.append(f"{_who(rank)} ran out of memory {_times(use.out_of_memory)}")
    if use.allocator_retries:
        full = _filled(use) >= NEARLY_FULL
        taken = f" with {_of_limit(use.reserved_gib or use.peak_gib, use)} taken" if full else ""
        lines.append(
            f"{_who(rank)} failed to allocate {_times(use.allocator_retries)}{taken}, and freed cached memory to retry"
        )
    return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _peak(rank: int | None, use: MemoryUse) -> str:
    least = "at least " if use.at_least else ""
    full = f" ({percent(use.peak_gib / use.limit_gib)})" if use.limit_gib and not use.at_least else ""
    where = "" if use.peak_at_share is None else f", {percent(use.peak_at_share)} into {use.peak_step}"
    phase = "" if use.peak_phase in (None, OUTSIDE) else f", in {use.peak_phase}"
    before = ": allocations from before the recording are missing" if use.at_least else ""
    return f"{_who(rank)} peaks at {least}{_of_limit(use.peak_gib, use)}{full}{where}{phase}{before}"


def _held(use: MemoryUse) -> list[str]:
    """Returns a line on the phases or call sites whose allocations are alive at the peak, the largest MAX_HOLDERS; []
    if none holds MIN_SHOWN_SHARE of it."""
    shown = [(what, gib) for what, gib in use.held_at_peak.items() if gib >= MIN_SHOWN_SHARE * use.peak_gib]
    holders = ", ".join(f"{gib:.2f} GiB {what}" for what, gib in shown[:MAX_HOLDERS])
    return [f"live at that peak, by phase or call site: {holders}"] if holders else []


def _unused(use: MemoryUse) -> list[str]:
    unused = use.fragmentation_gib
    if unused is None or unused < MIN_SHOWN_SHARE * use.peak_gib:
        return []
    return [f"{unused:.2f} of the {use.reserved_gib:.2f} GiB reserved are never allocated (fragmentation)"]
