"""Compares predicted with obtained gains: recorded studies are replayed, decision by decision.

    python -m benchmarks.predicted_gains STUDY… [--accepted]

For every trial that was proposed from the incumbent and gave figures, today's surrogate, fitted to the trials before
it, predicts the expected gain with its 90 % interval; the obtained gain is compared with it. Also prints the prediction
made at that time, and the gain in CPU time of the ranks, which other processes on a busy machine change less.
`--accepted` leaves out trials that were not accepted. Runs no burst.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from autotune.tuning.events import Event, Proposed
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_events
from autotune.tuning.speedup import throughput_ratio
from policies.noise import cpu_throughput
from policies.search.acquisition import gain_interval
from policies.surrogate.surrogate import Surrogate
from policies.trial import Status, Trial
from policies.tuner.tuner import Tuner
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe

SHOWN = 50  # most characters of a trial's changes


@dataclass(frozen=True, kw_only=True)
class ComparedGain:
    """One trial with its predicted and obtained gain.

    All gains are logs of throughput over its parent's. `then` is the prediction when it ran, `work` the gain in CPU
    time, if ranks compute on CPUs.
    """

    study: str
    number: int
    accepted: bool
    changes: str
    then: float | None
    expected: float
    low: float
    high: float
    obtained: float
    work: float | None = None

    @property
    def inside(self) -> bool:
        return self.low <= self.obtained <= self.high

    @property
    def error(self) -> float:
        """Returns predicted less obtained gain: above 0 if too much was expected."""
        return self.expected - self.obtained


def replay(study: str, events: Iterable[Event]) -> Iterator[ComparedGain]:
    """Yields every trial of a study that can be compared with a prediction from the trials before it."""
    history = History()
    before: dict[int, tuple[Trial, ...]] = {}
    for event in events:
        if isinstance(event, Proposed) and event.trial not in before:
            before[event.trial] = tuple(history.trials)
        history.fold(event)
    if history.study is None:
        return
    tuner = Tuner(Recipe.model_validate(history.study.recipe), history.study.seed, history.lessons, probed=history.rows)
    for number, trial in history.attempted.items():
        parent = next((one for one in before[number] if one.number == trial.proposal.parent), None)
        if parent is None or trial.status is not Status.OK or trial.verdict is None:
            continue
        remeasured = history.attempted[parent.number]
        if throughput_ratio(trial, remeasured) is not None:
            yield _compared(study, trial, remeasured, tuner.surrogate(before[number]))


def _compared(study: str, trial: Trial, parent: Trial, surrogate: Surrogate) -> ComparedGain:
    tables = (tabulate([recipe]) for recipe in (trial.recipe, parent.recipe))
    log_step, deviation = surrogate.time.difference(*(surrogate.time.closed_form(table) for table in tables))
    gains = gain_interval(-float(log_step[0]), float(deviation[0]), surrogate.time.noise)
    expected, low, high = (math.log1p(gain) for gain in gains)
    moved = ", ".join(f"{knob} {was}→{now}" for knob, (was, now) in trial.changes.items())
    then = trial.proposal.predicted.gain
    return ComparedGain(
        study=study,
        number=trial.number,
        accepted=trial.accepted,
        changes=moved,
        then=None if then is None else math.log1p(then),
        expected=expected,
        low=low,
        high=high,
        obtained=math.log(throughput_ratio(trial, parent) or 1.0),
        work=_by_work(trial, parent),
    )


def _by_work(trial: Trial, parent: Trial) -> float | None:
    ours, theirs = cpu_throughput(trial), cpu_throughput(parent)
    return math.log(ours / theirs) if ours and theirs else None


def table(held: Sequence[ComparedGain]) -> Table:
    shown = Table("study", "trial", "accepted", "then", "expected", "90 %", "obtained", "CPU time", "inside", "changes")
    for one in held:
        then = "-" if one.then is None else _percent(one.then)
        between = f"{_percent(one.low)} to {_percent(one.high)}"
        marks = ("yes" if one.accepted else "no", "yes" if one.inside else "NO")
        work = "-" if one.work is None else _percent(one.work)
        figures = (then, _percent(one.expected), between, _percent(one.obtained), work)
        shown.add_row(one.study, str(one.number), marks[0], *figures, marks[1], one.changes[:SHOWN])
    return shown


def summary(held: Sequence[ComparedGain]) -> str:
    """Returns how many trials are inside their interval, the median error, and the width of the intervals."""
    if not held:
        return "no trial to hold against a prediction"
    inside = sum(one.inside for one in held)
    error, size = median(one.error for one in held), median(abs(one.error) for one in held)
    wide = median(one.high - one.low for one in held) / 2
    return (
        f"{inside} of {len(held)} inside ({inside / len(held):.0%}); median of expected over obtained throughput "
        f"{math.exp(error):.2f}, median |log| {size:.2f}, median half interval {wide:.2f}"
    )


def _percent(log: float) -> str:
    return f"{100 * math.expm1(log):+.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=Path, metavar="STUDY")
    parser.add_argument("--accepted", action="store_true")
    asked = parser.parse_args()
    held = [one for folder in asked.studies for one in replay(folder.name, read_events(folder / JOURNAL)[0])]
    held = [one for one in held if one.accepted or not asked.accepted]
    console = Console(width=170)
    console.print(table(held), highlight=False)
    console.print(f"all: {summary(held)}", highlight=False)
    console.print(f"accepted: {summary([one for one in held if one.accepted])}", highlight=False)


if __name__ == "__main__":
    main()
