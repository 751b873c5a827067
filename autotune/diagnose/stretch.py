"""Parses the stretch of a trace from `--range`, `--step-marker`, `--from` and `--to`."""

from __future__ import annotations

import re

from analyzers.diagnosis import Stretch
from trainer.errors import refused

SCALES = {"": 1e6, "s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0}  # unit → microseconds; a number without a unit is seconds
TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us|µs|)")


def stretch_of(*, range_name: str | None, step_marker: str | None, since: str | None, until: str | None) -> Stretch:
    """Returns the stretch. Raises BadInputError for an invalid time, or an end that is not after the start."""
    from_us, to_us = _time("--from", since), _time("--to", until)
    if from_us is not None and to_us is not None and to_us <= from_us:
        raise refused("--to", f"{until} is not after --from {since}", "give the later time to --to")
    return Stretch(range=range_name, step_marker=step_marker, from_us=from_us, to_us=to_us)


def _time(option: str, text: str | None) -> float | None:
    """Returns microseconds for `1.5`, `1.5s`, `350ms` or `40us`."""
    if text is None:
        return None
    found = TIME.fullmatch(text.strip())
    if found is None:
        raise refused(option, f"{text!r} is not a time", "seconds after the trace's first event, or 350ms, 40us")
    return float(found[1]) * SCALES[found[2]]
