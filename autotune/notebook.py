"""Loads a study in a notebook: `autotune.load_study(path).trials()` is a pandas DataFrame, one row per trial.

pandas is imported when a table is requested: no command needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from analyzers.diagnosis import Wall
from autotune.looks.acting import acting_changes
from autotune.looks.fix_names import names_text
from autotune.looks.quantities import changes_text
from autotune.looks.reasons import proposal_text, verdict_text
from autotune.report.document import measured
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_events
from autotune.tuning.provisional import with_provisional_verdicts
from policies.trial import Trial
from trainer.errors import BadInputError, Problem

if TYPE_CHECKING:
    from pandas import DataFrame


class TrialRow(TypedDict):
    """Columns of `LoadedStudy.trials`, the same in every study. A figure that a trial lacks is missing.

    Gains are fractions of throughput (0.1 is 10 % more tokens per second), memory is GiB (2**30 bytes) of the rank with
    the highest peak, step times are of steps without profiler.
    """

    trial: int
    parent: int | None  # the trial that it changes
    phase: str
    fix: str  # the fix with the largest predicted share
    fixes: str
    changes: str  # knob old → new
    status: str
    verdict: str | None
    provisional: bool
    best: bool
    step_us: float | None  # median, with its 95 % interval
    step_low_us: float | None
    step_high_us: float | None
    steps: int
    tokens_per_s_per_gpu: float | None
    model_tflops_per_gpu: float | None
    peak_gib: float | None
    limit_gib: float | None
    predicted_gain: float | None  # here and below: predicted gain and its 90 % interval
    predicted_gain_low: float | None
    predicted_gain_high: float | None
    gain_bound: float | None
    predicted_peak_gib: float | None
    wall: str | None
    wall_recoverable_us: float | None
    wall_share: float | None
    memory_us: float | None  # recoverable time of each wall in the traced step; 0 for a wall that it does not show
    communication_us: float | None
    host_us: float | None
    compute_us: float | None
    bursts: int
    cost_s: float | None
    because: str
    verdict_because: str | None


WALLS = (Wall.MEMORY, Wall.COMMUNICATION, Wall.HOST, Wall.COMPUTE)


@dataclass(frozen=True, kw_only=True)
class LoadedStudy:
    """A study read from its journal. `history.attempted[3].analysis` is the analysis of trial 3, which has tables of
    its own."""

    path: Path
    history: History

    def trials(self) -> DataFrame:
        """Returns one row per trial in order, with the columns of `TrialRow`; a running trial has one from the end of
        its first burst on."""
        from pandas import DataFrame

        rows = [self._row(trial) for trial in self.history.attempted.values()]
        table = DataFrame(rows, columns=list(TrialRow.__annotations__))
        figures = {name: "float64" for name, type_ in TrialRow.__annotations__.items() if "float" in str(type_)}
        return table.astype(figures | {"parent": "Int64"})

    def _row(self, trial: Trial) -> TrialRow:
        figures = measured(trial)
        step = figures.step_us if figures else None
        predicted = trial.proposal.predicted
        diagnosis = trial.analysis.diagnosis if trial.analysis else None
        finding = diagnosis.finding(diagnosis.wall) if diagnosis else None
        best = self.history.best
        walls = {each.wall: each.recoverable_us for each in diagnosis.walls} if diagnosis else None
        memory, communication, host, compute = (walls.get(wall, 0.0) if walls else None for wall in WALLS)
        return {
            "trial": trial.number,
            "parent": trial.proposal.parent,
            "phase": trial.proposal.phase.value,
            "fix": trial.proposal.fix,
            "fixes": names_text(trial.proposal, trial.changes),
            "changes": changes_text(acting_changes(trial.recipe, trial.changes)) if trial.changes else "",
            "status": trial.status.value,
            "verdict": trial.verdict.value if trial.verdict else None,
            "provisional": trial.provisional,
            "best": best is not None and best.number == trial.number,
            "step_us": step.median if step else None,
            "step_low_us": step.low if step else None,
            "step_high_us": step.high if step else None,
            "steps": step.n if step else 0,
            "tokens_per_s_per_gpu": figures.tokens_per_s_per_gpu if figures else None,
            "model_tflops_per_gpu": figures.model_tflops_per_gpu if figures else None,
            "peak_gib": max(figures.peak_gib, default=None) if figures else None,
            "limit_gib": next((one.limit_gib for one in trial.outcomes if one.limit_gib), None),
            "predicted_gain": predicted.gain,
            "predicted_gain_low": predicted.gain_low,
            "predicted_gain_high": predicted.gain_high,
            "gain_bound": predicted.gain_bound,
            "predicted_peak_gib": predicted.peak_gib,
            "wall": diagnosis.wall.value if diagnosis else None,
            "wall_recoverable_us": finding.recoverable_us if finding else None,
            "wall_share": finding.share if finding else None,
            "memory_us": memory,
            "communication_us": communication,
            "host_us": host,
            "compute_us": compute,
            "bursts": len(trial.bursts),
            "cost_s": figures.cost_s if figures else None,
            "because": proposal_text(trial.proposal),
            "verdict_because": verdict_text(trial),
        }


def load_study(path: str | Path) -> LoadedStudy:
    """Reads the study in a folder that `moe-autotune run` or `bisect` made, finished or not.

    Raises:
        BadInputError: the folder has no journal, or its journal cannot be read.
    """
    folder = Path(path).expanduser()
    journal = folder / JOURNAL
    if not journal.is_file():
        hint = "name a folder that `moe-autotune run` or `bisect` made"
        raise BadInputError(Problem(where=str(folder), what=f"it has no {JOURNAL}", hint=hint))
    events, _ = read_events(journal)
    return LoadedStudy(path=folder, history=with_provisional_verdicts(History(events)))
