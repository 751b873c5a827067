"""Writes the sentences of a bisection for terminal and page."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.bisect.document import AlternativeEntry, Bisected, EffectEntry, Time, values_text
from autotune.bisect.measure import Measure
from autotune.looks.quantities import counted, gain, gain_interval, percent

MEASURED = {Measure.WALL: "time", Measure.CPU: "CPU time"}
MIN_SHOWN_REST = 0.01  # fraction of the time per token: a smaller effect of the other differences is not named (judged)


def headline(found: Bisected) -> str:
    """Returns the answer in one sentence."""
    total = f" ({MEASURED[found.measure]} per token of B: {time_text(found.total)})" if found.total else ""
    if found.answered == "a fails":
        return f"A itself fails ({found.symptom}): name an A that runs"
    if found.answered == "no difference":
        return f"B is not slower than A beyond the noise{total}"
    if not found.culprits:
        return f"undecided after {counted(len(found.bursts), 'burst')}{total}"
    effect = f"B fails ({found.symptom}) by" if found.symptom else "B is slower by"
    sets = "; ".join(acting_text(each) for each in found.culprits)
    certain = "" if found.answered == "culprits" else f"undecided, most probable ({percent(found.probability, 0)}): "
    return f"{certain}{effect}: {sets}{total}{_rest(found)}"


def figure(found: Bisected) -> str:
    """Returns the figure of the page: how B fails, else how much longer it takes."""
    if found.symptom is not None:
        return found.symptom
    return gain(found.total.change) if found.total else ""


def other_text(each: AlternativeEntry) -> str:
    """Returns `fp8 + tp_comm_overlap (12 %)`: a set that is possible too."""
    return f"{' + '.join(each.differences) or 'nothing'} ({percent(each.probability, 0)})"


def measure_text(found: Bisected) -> str:
    """Returns why CPU time is compared; empty if wall-clock time is."""
    if found.measure is Measure.WALL or found.wall_noise is None or found.noise is None:
        return ""
    return (
        f"CPU time of the ranks, which scatters by {percent(found.noise)} from burst to burst: wall-clock time "
        f"scatters by {percent(found.wall_noise)} on this machine. It does not include waiting"
    )


def _rest(found: Bisected) -> str:
    """Returns the effect of the other differences together; empty if it is within the noise or below MIN_SHOWN_REST."""
    rest = found.rest
    if rest is None or max(rest.low, -rest.high) < MIN_SHOWN_REST:
        return ""
    return f"; the other differences together: {time_text(rest)}"


def acting_text(each: EffectEntry) -> str:
    """Returns `fp8 and tp_comm_overlap, only together, +12.0 % (+9.1 to +15.0 %)`."""
    together = ", only together" if len(each.differences) > 1 else ""
    time = f", {time_text(each.time)}" if each.time else ""
    return f"{' and '.join(each.differences)}{together}{time}"


def time_text(time: Time) -> str:
    return gain_interval(time.change, time.low, time.high)


def rows_of_differences(found: Bisected) -> Iterator[tuple[str, str, str, str]]:
    """Yields values, predicted time, guilt before any burst, and the verdict on each difference."""
    guilty = {name: each for each in found.culprits for name in each.differences}
    helping = {name for each in found.helpers for name in each.differences}
    for each in found.differences:
        verdict = "guilty" if each.name in guilty else "makes B faster" if each.name in helping else ""
        yield values_text(each), gain(each.predicted.change), percent(each.guilt, 0), verdict


def columns_of_bursts(found: Bisected) -> tuple[str, ...]:
    """Returns the header of `rows_of_bursts`; wall-clock time has its own column if it is not the measure."""
    clock = () if found.measure is Measure.WALL else ("wall-clock",)
    return "burst", "recipe", f"{MEASURED[found.measure]} over A", *clock


def rows_of_bursts(found: Bisected) -> Iterator[tuple[str, ...]]:
    """Yields each burst's number, the differences set as in B, and its result."""
    for each in found.bursts:
        every = len(each.taken) == len(found.differences)
        taken = "B" if every else "A" if not each.taken else f"A with {', '.join(each.taken)}"
        times = (each.time,) if found.measure is Measure.WALL else (each.time, each.wall_time)
        yield str(each.burst), taken, *(each.symptom or gain(time) for time in times)
