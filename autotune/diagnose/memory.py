"""Draws the memory of a rank over its trace: the curve below its limit, and the allocations at the peak."""

from __future__ import annotations

from markupsafe import Markup

from analyzers.diagnosis import MemoryUse, TraceReport
from autotune.looks.quantities import duration, gib, percent
from autotune.looks.svg import Axis, drawing, line, place, tag
from autotune.looks.tables import Table

CURVE_PX = 220
MAX_LIMIT_OVER_PEAK = 2.5  # a higher limit is not drawn, because it would flatten the curve


def memory_curve(trace: TraceReport) -> Markup | None:
    """Draws GiB over time with the limit and the peak; None if the trace has no curve."""
    memory = trace.memory
    if memory is None or len(memory.curve) < 2:
        return None
    start, end = memory.curve[0][0], memory.curve[-1][0]
    length = max(end - start, 1e-9)
    peak = max([*(value for _, value in memory.curve), memory.peak_gib])
    limit = (
        memory.limit_gib if memory.limit_gib is not None and memory.limit_gib <= MAX_LIMIT_OVER_PEAK * peak else None
    )
    highest = max(peak, limit or 0.0)
    axis = Axis(low=0.0, high=1.08 * highest, top=14, bottom=CURVE_PX - 24)
    points = " ".join(f"{1000 * (us - start) / length:.1f},{axis.y(value):.1f}" for us, value in memory.curve)
    curve = tag(
        "svg",
        tag("polygon", points=f"0,{axis.bottom} {points} 1000,{axis.bottom}", class_="area"),
        tag("polyline", points=points, class_="line"),
        width="100%",
        height=str(CURVE_PX),
        viewBox=f"0 0 1000 {CURVE_PX}",
        preserveAspectRatio="none",
    )
    parts = [*axis.grid(), curve]
    if limit is not None:
        parts.append(line(0, axis.y(limit), 1, axis.y(limit), "limit", title=f"limit {gib(limit)}"))
    if memory.peak_at_us is not None and start <= memory.peak_at_us <= end:
        x, y = (memory.peak_at_us - start) / length, axis.y(memory.peak_gib)
        text = f"peak {gib(memory.peak_gib)} at {duration(memory.peak_at_us)}"
        parts.append(tag("circle", cx=place(x), cy=f"{y:.1f}", r="4", class_="mark oom", title=text))
    parts.append(tag("text", f"{duration(length)} of trace", x="50%", y=str(CURVE_PX - 4), class_="axis middle"))
    name = f"Memory over the trace: peak {gib(memory.peak_gib)}"
    return tag("p", "GiB", class_="unit") + drawing(parts, height=CURVE_PX, name=name, class_="curve")


def memory_table(memory: MemoryUse | None) -> Table:
    """Returns the allocations at the peak, largest first; no rows if they are unknown."""
    held = memory.held_at_peak if memory else {}
    whole = sum(held.values()) or 1.0
    rows = tuple(
        (name, gib(value), percent(value / whole))
        for name, value in sorted(held.items(), key=lambda item: (-item[1], item[0]))
    )
    return Table(columns=("allocated in", "at the peak", "share"), rows=rows, numbers=(1, 2))
