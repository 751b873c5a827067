"""Exports all trials of a study as an Optuna study, for optuna-dashboard and `optuna.load_study`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.looks.fix_names import names_text
from autotune.looks.reasons import proposal_text, verdict_text
from autotune.tuning.history import History
from policies.noise import throughput
from policies.search.sampler import ExportedTrial, excess, write_study
from policies.trial import Status, Trial


def write_optuna(history: History, path: Path) -> None:
    """Writes a new SQLite file. Parameters are the knobs that differ between trials, the value is tokens/s/GPU."""
    trials = history.trials
    varied = list(dict.fromkeys(knob for trial in trials for knob in trials[0].recipe.diff(trial.recipe)))
    name = history.study.name if history.study else "study"
    write_study(path, name, [_exported(history, trial, varied) for trial in trials])


def _exported(history: History, trial: Trial, varied: list[str]) -> ExportedTrial:
    ends = [event.at for event in history.finished if event.trial == trial.number]
    starts = [event.at - event.seconds for event in history.finished if event.trial == trial.number]
    proposed_at = history.proposals[trial.number][1].at
    return ExportedTrial(
        knobs={name: trial.recipe.knob(name) for name in varied},
        tokens_per_s=0.0 if trial.status is Status.OOM else throughput(trial),
        excess=excess(trial),
        overruled=_is_overruled(history, trial),
        attributes=_attributes(trial),
        started=_moment(min(starts, default=proposed_at)),
        ended=_moment(max(ends, default=proposed_at)),
    )


def _is_overruled(history: History, trial: Trial) -> bool:
    """Returns whether a trial measured faster than the study's best but was rejected by later bursts or its losses."""
    best, rate = history.best, throughput(trial)
    best_rate = throughput(best) if best is not None else None
    return trial is not best and rate is not None and best_rate is not None and rate >= best_rate


def _attributes(trial: Trial) -> dict[str, Any]:
    """Returns the user attributes of a trial: the fix and its reason, the prediction, and the result."""
    proposal, peaks = trial.proposal, [max(o.peak_gib) for o in trial.outcomes if o.ok and o.peak_gib]
    attributes = {
        "trial": trial.number,
        "phase": proposal.phase.value,
        "fix": proposal.fix,
        "fixes": names_text(proposal, trial.changes),
        "because": proposal_text(proposal),
        "predicted_gain": proposal.predicted.gain,
        "fits_probability": proposal.predicted.fits_probability,
        "status": trial.status.value,
        "verdict": trial.verdict.value if trial.verdict else None,
        "verdict_because": verdict_text(trial),
        "peak_gib": max(peaks) if peaks else None,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _moment(seconds: float) -> datetime:
    """Returns a datetime as Optuna stores it: naive, here in UTC."""
    return datetime.fromtimestamp(seconds, tz=UTC).replace(tzinfo=None)
