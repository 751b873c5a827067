"""Writes the sentences of a bisection for terminal, page and Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.bisect.document import Acting, Bisected, Time, values_text
from autotune.looks.quantities import counted, gain, gain_interval, percent

LEAST_REST = 0.01  # fraction of the time per token: a smaller effect of the other differences is not named (judged)


def headline(found: Bisected) -> str:
    """Returns the answer in one sentence."""
    total = f" (B takes {time_text(found.total)} time per token)" if found.total else ""
    if found.answered == "a fails":
        return f"A itself fails ({found.symptom}): name an end that runs as A"
    if found.answered == "no difference":
        return f"B is not slower than A beyond the noise{total}"
    if not found.culprits:
        return f"undecided after {counted(len(found.bursts), 'burst')}{total}"
    effect = f"B fails ({found.symptom}) by" if found.symptom else "B is slower by"
    sets = "; ".join(acting_text(each) for each in found.culprits)
    certain = "" if found.answered == "culprits" else f"undecided, most probable ({percent(found.probability, 0)}): "
    return f"{certain}{effect}: {sets}{total}{_rest(found)}"


def _rest(found: Bisected) -> str:
    """Returns the effect of the other differences together; empty if it is within the noise or below LEAST_REST."""
    rest = found.rest
    if rest is None or max(rest.low, -rest.high) < LEAST_REST:
        return ""
    return f"; the other differences together: {time_text(rest)}"


def acting_text(each: Acting) -> str:
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


def rows_of_bursts(found: Bisected) -> Iterator[tuple[str, str, str]]:
    """Yields each burst's number, the differences set as in B, and its result."""
    for each in found.bursts:
        every = len(each.taken) == len(found.differences)
        taken = "B" if every else "A" if not each.taken else f"A with {', '.join(each.taken)}"
        yield str(each.burst), taken, each.symptom or gain(each.time)
