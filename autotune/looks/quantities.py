"""Formats quantities in human units for reports and terminals; inside, times are microseconds and memory is GiB.

All text here is for people; programs read the JSON documents, which have plain numbers with the unit in the name.
"""

from __future__ import annotations

from typing import Any

from autotune.units import gpu_or_rank as gpu_or_rank
from trainer.values import knob_value

NONE = "–"
UNMEASURED = "figures of a model, nothing was measured"  # shown with the figures of a simulation
FIRST = 4  # knobs of a change that are named; the others are counted

_DURATIONS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))  # (microseconds per unit, unit), largest first


def significant(value: float, digits: int = 3) -> str:
    """Formats a number with `digits` significant digits and thousands separators, never in scientific notation."""
    if value == 0:
        return "0"
    rounded = abs(float(f"{value:.{digits}g}"))  # 9.896 has two decimals, 9.996 one: it is 10.0
    magnitude = len(str(int(rounded))) if rounded >= 1 else 0
    if magnitude == 0:
        leading = f"{abs(value):.10f}"[2:]
        digits += len(leading) - len(leading.lstrip("0"))
    return f"{value:,.{max(0, digits - magnitude)}f}"


def duration(us: float | None) -> str:
    """Returns `812 µs`, `15.2 ms`, `1.60 s`; a dash for None."""
    if us is None:
        return NONE
    scale, unit = next((row for row in _DURATIONS if abs(us) >= row[0]), _DURATIONS[-1])
    return f"{significant(us / scale)} {unit}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Returns `12.4 %` for a fraction of 0.124."""
    return NONE if fraction is None else f"{100 * fraction:.{digits}f} %"


def gain(fraction: float | None, digits: int = 1) -> str:
    """Returns a signed percentage: `+12.4 %`."""
    return NONE if fraction is None else f"{_signed(fraction, digits)} %"


def gain_interval(expected: float, low: float, high: float, *, digits: int = 1, also: str = "") -> str:
    """Returns `+15.0 % (+9.1 to +22.0 %)`; `also` follows the interval."""
    return f"{gain(expected, digits)} ({_signed(low, digits)} to {gain(high, digits)}{also})"


def _signed(fraction: float, digits: int) -> str:
    """Returns a percentage with its sign and without its unit."""
    return f"{100 * fraction:+z.{digits}f}".replace("-", "−")


def gib(value: float | None) -> str:
    return NONE if value is None else f"{significant(value)} GiB"


def tokens_per_s(value: float | None, *, unit: str) -> str:
    """Formats throughput per `unit`, as named by `gpu_or_rank`."""
    return NONE if value is None else f"{significant(value, 4)} tokens/s/{unit}"


def speedup_text(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.2f}×"


def interval(low: float | None, high: float | None, words: str = "95 % interval") -> str:
    """Returns `95 % interval 1.21–1.34` of a ratio; empty without one."""
    return "" if low is None or high is None else f"{words} {low:.2f}–{high:.2f}"


def changes_text(changes: dict[str, tuple[Any, Any]]) -> str:
    """Returns `micro_batch_size 1 → 4, recompute_granularity full → null`; `nothing` for no change."""
    return ", ".join(f"{knob} {knob_value(a)} → {knob_value(b)}" for knob, (a, b) in changes.items()) or "nothing"


def first_changes(changes: dict[str, tuple[Any, Any]]) -> str:
    """Returns the first changed knobs, and the number of the others."""
    first = dict(list(changes.items())[:FIRST])
    more = len(changes) - len(first)
    return changes_text(first) + (f" and {more} more" if more else "")


def counted(number: int, noun: str) -> str:
    """Returns `1 burst`, `3 bursts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
