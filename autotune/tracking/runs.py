"""Makes the runs of an experiment tracker from a study: one for the study, and a child run for each trial.

Pure: made from the history alone. Identifiers and uploads belong to the tracker's module.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.looks.fix_names import names_text, short_names
from autotune.looks.reasons import end_text
from autotune.report.document import Document, TrialEntry, document_of
from autotune.tuning.events import BurstFinished
from autotune.tuning.history import History
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.values import knob_value

Curve = tuple[float, ...]  # values by step, from the first one


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run. `metrics` are single figures, `curves` figures by step; times are seconds since the epoch."""

    name: str
    started_at: float
    ended_at: float
    failed: bool = False
    parameters: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StudyRuns:
    """All runs of a study. `identity` is the same for every export of the same study."""

    experiment: str
    identity: str
    study: Run
    trials: tuple[Run, ...]


def runs_of(history: History) -> StudyRuns:
    """Returns the runs of a history, which must have its `StudyStarted` event, as `read_study` ensures."""
    assert history.study is not None
    document = document_of(history)
    return StudyRuns(
        experiment=document.study,
        identity=f"{history.study.digest} {history.study.at:.3f}",
        study=_study(history, document),
        trials=tuple(_trial(entry, history) for entry in document.trials),
    )


def _study(history: History, document: Document) -> Run:
    assert history.study is not None
    recipe = Recipe.model_validate(history.study.recipe)
    low, high = document.speedup_ci or (None, None)
    metrics = {
        "speedup": document.speedup,
        "speedup_low": low,
        "speedup_high": high,
        "gpu_hours": document.gpu_hours,
        "bursts": float(len(history.finished)),
        "best_trial": None if document.best is None else float(document.best),
    }
    because = end_text(history.ended) if history.ended else ""
    return Run(
        name=document.study,
        started_at=history.study.at,
        ended_at=history.last_event_at,
        failed=document.status == "infeasible",
        parameters=_knobs(recipe),
        metrics=_known(metrics),
        tags={
            "status": document.status,
            "because": because,
            "gpu": f"{recipe.world_size} x {recipe.cluster.gpu_name}",
            "simulated": str(document.simulated).lower(),
            **{f"version.{name}": version for name, version in document.environment.items()},
        },
    )


def _trial(entry: TrialEntry, history: History) -> Run:
    trial = history.attempted[entry.number]
    measured = entry.outcome
    metrics = {
        "predicted_gain": entry.predicted.gain,
        "predicted_peak_gib": entry.predicted.peak_gib,
        "step_ms": measured.step_us.median / 1e3 if measured else None,
        "tokens_per_s_per_gpu": measured.tokens_per_s_per_gpu if measured else None,
        "model_tflops_per_gpu": measured.model_tflops_per_gpu if measured else None,
        "peak_gib": max(measured.peak_gib, default=None) if measured else None,
    }
    walls = {
        f"{wall.wall}_ms": wall.recoverable_us / 1e3 for wall in (entry.diagnosis.walls if entry.diagnosis else [])
    }
    bursts = [event for event in history.finished if event.trial == entry.number]
    started, ended = _times(bursts, history)
    return Run(
        name=f"{entry.number} {short_names(trial)}",
        started_at=started,
        ended_at=ended,
        failed=entry.failure is not None,
        parameters={knob: knob_value(trial.recipe.knob(knob)) for knob in entry.changes},
        metrics=_known(metrics) | walls,
        curves={"loss": tuple(measured.loss)} if measured and measured.loss else {},
        tags={
            "phase": entry.phase,
            "fix": entry.fix,
            "fixes": names_text(trial.proposal, trial.changes),
            "because": entry.because,
            "status": entry.status,
            "verdict": entry.verdict or "",
            "verdict_because": entry.verdict_because,
            "wall": entry.diagnosis.wall if entry.diagnosis else "",
            "parent_trial": "" if entry.parent is None else str(entry.parent),
        },
    )


def _times(bursts: list[BurstFinished], history: History) -> tuple[float, float]:
    """Returns the start of the first burst and the end of the last; the study's last event if none ran."""
    if not bursts:
        return history.last_event_at, history.last_event_at
    return bursts[0].at - bursts[0].seconds, bursts[-1].at


def _knobs(recipe: Recipe) -> dict[str, str]:
    """Returns the knobs that differ from their default."""
    return {name: knob_value(recipe.knob(name)) for name, knob in KNOBS.items() if recipe.knob(name) != knob.default}


def _known(metrics: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}
