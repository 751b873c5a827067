"""The accepted path: the base recipe, then every accepted change, each with the wall it acts on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.looks.quantities import gain, gain_interval, tokens_per_s
from autotune.report.document import measured
from autotune.report.walls import WallSeen, wall_of
from autotune.tuning.lines import bursts_behind
from autotune.tuning.speedup import Speedup, obtained
from policies.trial import Trial


@dataclass(frozen=True, kw_only=True)
class PathStep:
    """One accepted trial; `wall` is its parent's, on which this step acts."""

    number: int  # 0: the base recipe
    trial: Trial
    parent: Trial | None
    wall: WallSeen | None
    obtained: Speedup | None  # speed-up over the parent; None if the parent did not run


def accepted_path(trials: Sequence[Trial]) -> list[PathStep]:
    """Returns the first trial, whatever its status, and every accepted one after it, in order."""
    by_number = {trial.number: trial for trial in trials}
    kept = [trial for index, trial in enumerate(trials) if index == 0 or trial.accepted]
    return [_step(number, trial, by_number, trials) for number, trial in enumerate(kept)]


def gain_with_interval(speedup: Speedup | None) -> str:
    """Returns `+12.4 % (+10.9 to +13.8 %)`, marked provisional below two bursts per side; empty for None."""
    if speedup is None:
        return ""
    few = f", provisional: {bursts_behind(speedup)}" if speedup.provisional else ""
    return gain_interval(speedup.value - 1, speedup.low - 1, speedup.high - 1, also=few)


def predicted_text(trial: Trial) -> str:
    """Returns the prediction with its 90 % interval, `+15.0 % (+9.1 to +22.0 %)`; else the gain that the fix claims
    with its bound by the wall's recoverable time, `+15.0 %, bound +22.0 %`."""
    predicted = trial.proposal.predicted
    if predicted.gain is not None and predicted.gain_low is not None and predicted.gain_high is not None:
        return gain_interval(predicted.gain, predicted.gain_low, predicted.gain_high)
    bound = f"bound {gain(predicted.gain_bound)}" if predicted.gain_bound is not None else ""
    claim = gain(predicted.gain) if predicted.gain is not None else ""
    return ", ".join(part for part in (claim, bound) if part) or "no figure"


def obtained_text(step: PathStep, unit: str) -> str:
    """Returns the gain over the parent; if that is unknown, the throughput, or that it does not run."""
    if step.obtained is not None:
        return gain_with_interval(step.obtained)
    figures = measured(step.trial)
    return f"runs: {tokens_per_s(figures.tokens_per_s_per_gpu, unit=unit)}" if figures else "does not run"


def _step(number: int, trial: Trial, by_number: dict[int, Trial], trials: Sequence[Trial]) -> PathStep:
    parent = by_number.get(trial.proposal.parent) if trial.proposal.parent is not None else None
    return PathStep(
        number=number,
        trial=trial,
        parent=parent,
        wall=wall_of(parent) if parent else None,
        obtained=obtained(trial, parent, trials),
    )
