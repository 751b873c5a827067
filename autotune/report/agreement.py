"""Compares the journal with the files of the bursts.

Every burst writes `outcome.json` and `steps.jsonl` into its folder; a figure that was changed in the journal later
differs from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from autotune.looks.quantities import duration, gib, tokens_per_s
from autotune.report.material import Material, Section
from autotune.tuning.history import History
from trainer.burst import Outcome, read_outcome

TOLERANCE = 1e-9  # relative; both files are written from the same numbers
MAX_SHOWN = 20  # warnings in the section; the others are counted


class _Step(msgspec.Struct):
    step_us: float


_STEPS = msgspec.json.Decoder(_Step)


def disagreements(history: History, bursts: Path | None) -> list[str]:
    """Returns a sentence for each burst whose files differ from the journal; bursts without files are skipped."""
    if bursts is None:
        return []
    return [
        f"burst {event.burst} (trial {event.trial}): {said}"
        for event in history.finished
        for said in _burst(event.outcome, bursts / f"{event.burst:04d}")
    ]


def agreement(material: Material) -> Section | None:
    """Returns the section with the warnings, which comes before any figure; None without warnings."""
    warnings = material.document.warnings
    if not warnings:
        return None
    more = [f"And {len(warnings) - MAX_SHOWN} more."] if len(warnings) > MAX_SHOWN else []
    said = (
        "The journal and the files that the bursts left disagree. The figures of this report are the journal's; do not "
        "rely on them before it is known which of the two was changed.",
        *(f"{text[:1].upper()}{text[1:]}." for text in warnings[:MAX_SHOWN]),
        *more,
    )
    return Section(key="agreement", title="The journal disagrees with the bursts", paragraphs=said)


def _burst(journal: Outcome, folder: Path) -> Iterator[str]:
    try:
        left = read_outcome(folder)
    except (OSError, msgspec.MsgspecError):
        yield f"{folder.name}/outcome.json cannot be read"
        return
    if left is not None:
        yield from _outcome(journal, left, f"{folder.name}/outcome.json")
    steps = _steps(folder / "steps.jsonl")
    if steps is None:
        yield f"{folder.name}/steps.jsonl cannot be read"
    elif steps and (said := _compared("step time", journal.step_us, steps, f"{folder.name}/steps.jsonl")):
        yield said


def _outcome(journal: Outcome, left: Outcome, file: str) -> Iterator[str]:
    if journal.ok is not left.ok:
        words = [f"failed ({o.failure.kind})" if o.failure else "ran" for o in (journal, left)]
        yield f"the journal says it {words[0]}, {file} that it {words[1]}"
    series = (
        ("step time", journal.step_us, left.step_us),
        ("CPU time", journal.cpu_us, left.cpu_us),
        ("loss", journal.loss, left.loss[: len(journal.loss)]),
        ("peak memory", journal.peak_gib, left.peak_gib),
        ("throughput", _known(journal.tokens_per_s_per_gpu), _known(left.tokens_per_s_per_gpu)),
    )
    for name, here, there in series:
        if said := _compared(name, here, there, file):
            yield said


def _compared(name: str, journal: Sequence[float], left: Sequence[float], file: str) -> str | None:
    """Describes the first difference of two series; None if they agree."""
    if len(journal) != len(left):
        return f"the journal has {len(journal)} values of {name}, {file} has {len(left)}"
    pairs = enumerate(zip(journal, left, strict=True))
    difference = next((each for each in pairs if not math.isclose(*each[1], rel_tol=TOLERANCE)), None)
    if difference is None:
        return None
    at, (here, there) = difference
    words = WORDS.get(name, "{:.6g}".format)
    return f"{name} {at} is {words(here)} in the journal and {words(there)} in {file}"


WORDS: dict[str, Callable[[float], str]] = {
    "step time": duration,
    "CPU time": duration,
    "peak memory": gib,
    "throughput": lambda value: tokens_per_s(value, unit="GPU"),
}


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _steps(path: Path) -> list[float] | None:
    """Returns the step times of `steps.jsonl`, in µs; empty if there is no such file, None if it cannot be read."""
    try:
        return [step.step_us for step in _STEPS.decode_lines(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError):
        return None
