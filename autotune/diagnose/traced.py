"""Reads an analysis from the paths on the command line: traces, folders of them, or a trial of a study as `STUDY/3`.

A trial's traces are those of its first burst (repeats are not traced); if they were deleted, its analysis is read from
the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec

from analyzers import Analysis, analyze
from analyzers.analysis import Progress, silent
from analyzers.diagnosis import WHOLE, Stretch
from analyzers.inputs import TRACE_FOLDER
from analyzers.lanes import Kept
from analyzers.outcome import FILE_NAME as OUTCOME
from autotune.tuning.journal import JOURNAL, read_events
from autotune.tuning.study import originals
from policies.situation import Situation, situation_of
from policies.trial import Trial
from trainer.burst import Outcome, read_burst
from trainer.errors import refused


def analysis_of(
    paths: Sequence[Path], stretch: Stretch = WHOLE, progress: Progress = silent, kept: Kept | None = None
) -> Analysis:
    """Returns the diagnosis of one job, from its traces or from one trial, within a stretch. `kept` as in `analyze`.

    Raises:
        BadInputError: no path, a whole study, or a trial that does not exist, was not traced, or has lost the traces
            that a stretch is read from.
        TraceError: no file there can be read as a trace.
    """
    if not paths:
        raise refused("diagnose", "no trace is named", "name trace files or their folder")
    if len(paths) == 1:
        return analysis_at(paths[0], stretch, progress, kept)
    return analyze([_traces_at(path) for path in paths], stretch, progress, kept)


def input_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Returns the files and folders that are read for these paths; for a trial, those of its study."""
    return tuple(
        file
        for path in paths
        for file in (originals(path.parent) if not path.exists() and path.name.isdecimal() else (path,))
    )


def analysis_at(path: Path, stretch: Stretch, progress: Progress, kept: Kept | None = None) -> Analysis:
    """Returns the analysis of a file, a folder or a trial."""
    trial = trial_at(path)
    if trial is None:
        return analyze([_not_a_study(path)], stretch, progress, kept)
    folder = _burst_folder(path, trial)
    if (folder / TRACE_FOLDER).is_dir() or (trial.ran_out and (folder / OUTCOME).is_file()):
        return analyze([folder], stretch, progress, kept)
    if stretch != WHOLE:
        raise refused(str(path), f"the traces of trial {trial.number} are gone", "a stretch is read from them")
    if trial.analysis is None:
        failure = next((outcome.failure for outcome in trial.outcomes if outcome.failure), None)
        why = f"it failed ({failure.kind.value})" if failure else "its traces are gone"
        raise refused(str(path), f"trial {trial.number} has no analysis: {why}", "name a trial that was traced")
    return trial.analysis


def situation_of_traces(paths: Sequence[Path], analysis: Analysis, recipe: str | None = None) -> Situation | None:
    """Returns the recipe and burst behind the traces: from `recipe` if it is named, a trial, or a run folder; None if
    unknown.

    Raises BadInputError if `recipe` is not a recipe.
    """
    if recipe is not None:
        from trainer.recipe import load_recipe

        return Situation(recipe=load_recipe(recipe), analysis=analysis)
    trial = trial_at(paths[0]) if len(paths) == 1 else None
    if trial is not None:
        return replace(situation_of(trial), analysis=analysis)
    folders = (folder for path in paths for folder in (path, path.parent, path.parent.parent))
    folder = next((folder for folder in folders if (folder / "burst.json").is_file()), None)
    try:
        recipe_there = None if folder is None else read_burst(folder).recipe
    except (ValueError, KeyError):  # a file of that name from another program
        recipe_there = None
    if folder is None or recipe_there is None:
        return None
    return Situation(recipe=recipe_there, analysis=analysis, outcome=_outcome_in(folder))


def _outcome_in(folder: Path) -> Outcome | None:
    found = folder / OUTCOME
    return msgspec.json.decode(found.read_bytes(), type=Outcome) if found.is_file() else None


def untraced_step_us(path: Path) -> float | None:
    """Returns the median step that a trial's bursts, or the burst of a run folder, measured without a profiler; None if
    there is none."""
    trial = trial_at(path)
    if trial is not None:
        outcomes = list(trial.outcomes)
    else:
        outcomes = [outcome for outcome in [_outcome_in(path)] if outcome is not None]
    medians = [median(outcome.step_us) for outcome in outcomes if outcome.ok and outcome.step_us]
    return median(medians) if medians else None


def _traces_at(path: Path) -> Path:
    trial = trial_at(path)
    return _not_a_study(path) if trial is None else _burst_folder(path, trial)


def _burst_folder(path: Path, trial: Trial) -> Path:
    return path.parent / "bursts" / f"{trial.bursts[0] if trial.bursts else 0:04d}"


def trial_at(path: Path) -> Trial | None:
    """Returns the trial of a path such as `STUDY/3`; None for any other path."""
    if path.exists() or not path.name.isdecimal() or not (path.parent / JOURNAL).is_file():
        return None
    from autotune.tuning.history import History
    from autotune.tuning.provisional import with_provisional_verdicts

    events, _ = read_events(path.parent / JOURNAL)
    attempted = with_provisional_verdicts(History(events)).attempted
    if int(path.name) not in attempted:
        raise refused(str(path), f"the study has no trial {int(path.name)}", f"it has {_numbers(list(attempted))}")
    return attempted[int(path.name)]


def _not_a_study(path: Path) -> Path:
    if (path / JOURNAL).is_file():
        raise refused(str(path), "is a whole study, not one job", f"name one of its trials, such as {path / '0'}")
    return path


def _numbers(numbers: Sequence[int]) -> str:
    return f"trials {min(numbers)} to {max(numbers)}" if numbers else "no trial yet"
