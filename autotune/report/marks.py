"""Names the marks of trials in figures: the shape shows status and verdict."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from autotune.looks.svg import shapes
from policies.trial import Status, Trial, Verdict

WORDS = {
    "accepted": "accepted",
    "rejected": "rejected",
    "inconclusive": "within the noise",
    "noop": "no effect",
    "oom": "out of memory",
    "failed": "failed or refused",
}


def shape_of(trial: Trial) -> str:
    """Returns the name of a trial's mark: its status, or its verdict if it ran."""
    if trial.status is not Status.OK:
        return trial.status.value
    return (trial.verdict or Verdict.INCONCLUSIVE).value


def marks_legend(trials: Iterable[Trial]) -> Markup:
    """Returns the legend of the marks that occur."""
    seen = {shape_of(trial) for trial in trials}
    return shapes([(shape, text) for shape, text in WORDS.items() if shape in seen])
