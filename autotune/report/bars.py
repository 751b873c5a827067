"""The stacked bars: where a step's time went, trial by trial and rank by rank. The colours are the walls'."""

from __future__ import annotations

from markupsafe import Markup

from analyzers.diagnosis import Partition, TraceReport
from autotune.diagnose.steps import step_bar, steps_legend
from autotune.looks.quantities import duration
from autotune.looks.segments import counted_steps, mean_segments, mean_step_us, segments, slowest, steps_of
from autotune.looks.svg import tag
from autotune.report.material import Material, fix_title, status_words
from policies.trial import Trial

RANKS_SHOWN = 8  # bars of more ranks say nothing new: the slowest are shown, and how many are not


def step_bars(material: Material) -> Markup:
    """One bar a traced trial, all on one scale: the average step of its slowest rank."""
    found = ((trial, slowest(trial.analysis)) for trial in material.trials if trial.analysis)
    traced = [(trial, trace) for trial, trace in found if trace is not None]
    longest = max((mean_step_us(trace) for _, trace in traced), default=1.0)
    bars = [_trial_bar(trial, trace, longest) for trial, trace in traced]
    return Markup("").join([_legend(material), *bars])


def rank_bars(trial: Trial) -> Markup:
    """Every traced step of every rank of one trial, on one scale; the slowest ranks where there are many."""
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


def _trial_bar(trial: Trial, trace: TraceReport, longest: float) -> Markup:
    wall = trial.analysis.diagnosis.wall.value if trial.analysis else ""
    of_rank = f", rank {trace.rank}" if trace.rank is not None else ""
    label = (
        f"trial {trial.number} · {fix_title(trial)} · {status_words(trial)} · "
        f"{duration(mean_step_us(trace))}{of_rank} · wall: {wall}"
    )
    return step_bar(mean_segments(counted_steps(trace)), longest, label)


def _step_label(trace: TraceReport, step: Partition, index: int) -> str:
    rank = f"rank {trace.rank}" if trace.rank is not None else trace.path.rsplit("/", 1)[-1]
    return f"{rank} · {step.name or f'step {index}'} · {duration(step.duration_us)}"


def _legend(material: Material) -> Markup:
    """The kinds of time that occur anywhere in the study."""
    analyses = [trial.analysis for trial in material.trials if trial.analysis]
    return steps_legend(step for analysis in analyses for trace in analysis.traces for step in steps_of(trace))
