"""Draws the stacked bars of a step's time, by trial and by rank, in the colours of the walls."""

from __future__ import annotations

from markupsafe import Markup

from analyzers.diagnosis import Partition, TraceReport
from autotune.diagnose.steps import step_bar, steps_legend
from autotune.looks.fix_names import titles_text
from autotune.looks.quantities import duration
from autotune.looks.segments import counted_steps, mean_segments, mean_step_us, segments, steps_of
from autotune.looks.svg import tag
from autotune.report.before_after import compared_traces, pair_of
from autotune.report.material import Material, status_words
from autotune.report.path import PathStep
from policies.trial import Trial

RANKS_SHOWN = 8  # the slowest ranks; only the number of the others is shown


def step_bars(material: Material) -> Markup:
    """Draws one bar per traced trial on one scale: the average step of the compared rank."""
    traced = compared_traces(material.trials)
    longest = max((mean_step_us(trace) for _, trace in traced), default=1.0)
    bars = [_trial_bar(trial, trace, longest) for trial, trace in traced]
    return Markup("").join([_legend(material), *bars])


def pair_bars(step: PathStep) -> Markup | None:
    """Draws the average step of one rank before and after an accepted change, on one scale. None if no rank was traced
    in both."""
    pair = pair_of(step)
    if pair is None or step.parent is None:
        return None
    found = (("before", step.parent, pair.before), ("after", step.trial, pair.after))
    longest = max(mean_step_us(trace) for _, _, trace in found) or 1.0
    bars = [
        step_bar(mean_segments(counted_steps(trace)), longest, _pair_label(when, trial, trace))
        for when, trial, trace in found
    ]
    return Markup("").join(bars)


def path_legend(material: Material) -> Markup:
    """Draws the legend of the segments in the bars of the path; empty if it has none."""
    pairs = [pair for step in material.path if (pair := pair_of(step)) is not None]
    if not pairs:
        return Markup("")
    return steps_legend(step for pair in pairs for trace in (pair.before, pair.after) for step in steps_of(trace))


def rank_bars(trial: Trial) -> Markup:
    """Draws every traced step of every rank of one trial, on one scale; of many ranks only the slowest."""
    traces = sorted(trial.analysis.traces, key=mean_step_us, reverse=True) if trial.analysis else []
    shown = sorted(traces[:RANKS_SHOWN], key=lambda trace: trace.rank or 0)
    longest = max((step.duration_us for trace in traces for step in steps_of(trace)), default=1.0)
    bars = [
        step_bar(segments(step), longest, _step_label(trace, step, index))
        for trace in shown
        for index, step in enumerate(steps_of(trace))
    ]
    left_out = len(traces) - len(shown)
    note = tag("p", f"The {len(shown)} slowest ranks; {left_out} more are not drawn.", class_="note")
    return Markup("").join([*bars, note] if left_out else bars)


def _pair_label(when: str, trial: Trial, trace: TraceReport) -> str:
    of_rank = f" · rank {trace.rank}" if trace.rank is not None else ""
    return f"{when} · trial {trial.number}{of_rank} · {duration(mean_step_us(trace))}"


def _trial_bar(trial: Trial, trace: TraceReport, longest: float) -> Markup:
    wall = trial.analysis.diagnosis.wall.value if trial.analysis else ""
    of_rank = f", rank {trace.rank}" if trace.rank is not None else ""
    label = (
        f"trial {trial.number} · {titles_text(trial)} · {status_words(trial)} · "
        f"{duration(mean_step_us(trace))}{of_rank} · wall: {wall}"
    )
    return step_bar(mean_segments(counted_steps(trace)), longest, label)


def _step_label(trace: TraceReport, step: Partition, index: int) -> str:
    rank = f"rank {trace.rank}" if trace.rank is not None else trace.path.rsplit("/", 1)[-1]
    return f"{rank} · {step.name or f'step {index}'} · {duration(step.duration_us)}"


def _legend(material: Material) -> Markup:
    """Draws the legend of the segments that occur anywhere in the study."""
    analyses = [trial.analysis for trial in material.trials if trial.analysis]
    return steps_legend(step for analysis in analyses for trace in analysis.traces for step in steps_of(trace))
