"""Sections on gains: each trial's predicted and obtained gain, and the gain of each accepted change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.looks.fix_names import NAMED, parts_of, short_names, title_of, titles_text
from autotune.looks.quantities import NONE, gain, percent, tokens_per_s
from autotune.looks.tables import Table
from autotune.report.material import Material, Section, status_words
from autotune.report.path import gain_with_interval, predicted_text
from autotune.tuning.speedup import Speedup, obtained
from policies.trial import FixShare, Trial


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One trial with a predicted gain over its parent; `obtained` is None if one of the two did not run."""

    trial: Trial
    obtained: Speedup | None

    @property
    def predicted(self) -> tuple[float, float, float] | None:
        """Returns the predicted gain with its 90 % interval; None without an interval."""
        prediction = self.trial.proposal.predicted
        if prediction.gain is None or prediction.gain_low is None or prediction.gain_high is None:
            return None
        return prediction.gain, prediction.gain_low, prediction.gain_high

    @property
    def inside(self) -> bool | None:
        """Returns whether the obtained gain lies in the predicted interval; None if one of them is unknown."""
        if self.predicted is None or self.obtained is None:
            return None
        _, low, high = self.predicted
        return low <= self.obtained.value - 1 <= high


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One accepted change of the waterfall: throughput before and after, and each fix's share of the difference;
    `parts` is empty if no share is known."""

    trial: Trial
    before: float
    after: float
    parts: tuple[tuple[FixShare, float], ...]


def forecasts(material: Material) -> list[Forecast]:
    """Returns every trial with a predicted gain, in order."""
    return [
        Forecast(trial=trial, obtained=obtained(trial, material.trial(trial.proposal.parent), material.trials))
        for trial in material.trials
        if trial.proposal.predicted.gain is not None
    ]


def predictions(material: Material) -> Section | None:
    found = forecasts(material)
    if not found:
        return None
    judged = [forecast.inside for forecast in found if forecast.inside is not None]
    held = f" {sum(judged)} of {len(judged)} obtained gains are inside." if judged else ""
    paragraphs = (
        "Gain over the parent of each trial: the bar is the 90 % interval predicted before its first burst, the stroke "
        "in it the expected gain; the mark is the gain over all bursts of both, with its 95 % interval."
        f"{held} The scale is stretched for small gains.",
    )
    columns = ("trial", "fixes", "predicted (90 %)", "obtained (95 %)", "obtained is")
    table = Table(columns=columns, rows=tuple(map(_forecast_row, found)), numbers=(0,))
    return Section(key="predictions", title="Predicted against obtained", paragraphs=paragraphs, table=table)


def _forecast_row(forecast: Forecast) -> tuple[str, ...]:
    trial, inside = forecast.trial, forecast.inside
    ran = gain_with_interval(forecast.obtained) or status_words(trial)
    lies = NONE if inside is None else "inside" if inside else _missed_text(forecast)
    return str(trial.number), short_names(trial, most=NAMED), predicted_text(trial), ran, lies


def _missed_text(forecast: Forecast) -> str:
    assert forecast.predicted is not None
    assert forecast.obtained is not None
    return "below" if forecast.obtained.value - 1 < forecast.predicted[1] else "above"


def stages(material: Material) -> list[Stage]:
    """Returns the accepted changes that ran, each from its parent's throughput, or from the reference's if the parent
    did not run."""
    rates = {number: figures.tokens_per_s_per_gpu for number, figures in material.figures.items()}
    reference = material.history.reference
    found = []
    for step in material.path:
        if step.parent is None or step.trial.number not in rates or reference is None:
            continue
        before = rates.get(step.parent.number, rates.get(reference.number))
        if before is not None and step.trial.number != reference.number:
            parts = tuple(_divided(step.trial))
            found.append(Stage(trial=step.trial, before=before, after=rates[step.trial.number], parts=parts))
    return found


def _divided(trial: Trial) -> Iterator[tuple[FixShare, float]]:
    """Yields each fix with a predicted gain, and its share of the sum of these gains."""
    parts = parts_of(trial.proposal, trial.changes)
    if len(parts) == 1:
        yield parts[0], 1.0
        return
    gained = [part for part in parts if (part.predicted_share or 0.0) > 0]
    total = sum(part.predicted_share or 0.0 for part in gained)
    for part in gained:
        yield part, (part.predicted_share or 0.0) / total


def waterfall(material: Material) -> Section | None:
    found = stages(material)
    if not found:
        return None
    rows = tuple(row for stage in found for row in _stage_rows(stage, material.unit))
    paragraphs = (
        "Throughput from the reference to the tuned recipe, one bar for each accepted change, in the colours of the "
        "walls that its fixes answer. A change was measured as a whole: its gain is divided among its fixes in "
        "proportion to their predicted shares; fixes that were predicted to cost throughput have no part.",
    )
    columns = ("trial", "throughput", "fix", "answers", "part of the gain")
    table = Table(columns=columns, rows=rows, numbers=(0, 4))
    return Section(key="waterfall", title="What each accepted change gave", paragraphs=paragraphs, table=table)


def _stage_rows(stage: Stage, unit: str) -> Iterator[tuple[str, ...]]:
    trial, moved = stage.trial, stage.after - stage.before
    rates = f"{tokens_per_s(stage.before, unit=unit)} → {tokens_per_s(stage.after, unit=unit)}"
    total = f"{rates} ({gain(stage.after / stage.before - 1)})"
    if not stage.parts:
        yield str(trial.number), total, titles_text(trial), NONE, NONE
    for part, share in stage.parts:
        each = f"{tokens_per_s(share * moved, unit=unit)} ({percent(share, 0)})"
        yield str(trial.number), total, title_of(part, trial.changes), str(part.wall or NONE), each
