"""Renders reasons: the only place where the kind and figures of a verdict become a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from autotune.looks import proposals
from autotune.looks.quantities import counted, gain, gain_interval, percent
from policies.reason import Reason, ReasonKind
from policies.trial import Trial

Figures = Mapping[str, Any]

# Noise band above which a comparison is shown as too noisy, a fraction of throughput: at ±100 % a candidate may be
# twice as fast as measured, or half as fast.
MAX_BAND = 1.0


class Reasoned(Protocol):
    """A proposal or an end in the journal. `because`: its text in journals of versions without `reason`."""

    @property
    def reason(self) -> Reason | None: ...

    @property
    def because(self) -> str: ...


# Reason of an accepted trial → the measure that decided; the other reasons compare no bursts
DECIDED_BY = {
    ReasonKind.FAR_BEYOND_NOISE: "wall-clock time",
    ReasonKind.INTERLEAVED_REPEATS: "wall-clock time of interleaved bursts",
    ReasonKind.CPU_TIME: "CPU time of the ranks",
    ReasonKind.WITHIN_PREDICTION: "wall-clock time together with the prediction",
}


def verdict_text(trial: Trial) -> str:
    """Returns the reason of a trial's verdict in words."""
    text = sentence(trial.verdict_reason) if trial.verdict_reason else trial.verdict_because
    return f"{text}; {provisional_text(trial)}" if trial.provisional else text


def proposal_text(proposal: Reasoned) -> str:
    """Returns the reason of a proposal in words; the recorded text in journals of versions without reasons."""
    return sentence(proposal.reason) if proposal.reason else proposal.because


def for_predicted_bursts(reason: Reason) -> Reason:
    """Returns the reason of a proposal that follows predicted bursts, not measured ones: no trials were learned from,
    and memory failures are by estimate."""
    figures = dict(reason.figures)
    if "learned" in figures:
        figures["learned"] = {**figures["learned"], "trials": 0, "imagined": True}
    if "failed" in figures:
        figures["failed"] = {**figures["failed"], "by_estimate": True}
    return Reason(kind=reason.kind, figures=figures)


def end_text(ended: Reasoned) -> str:
    """Returns, in words, why a study ended: the recorded text in journals of versions without reasons."""
    return sentence(ended.reason) if ended.reason else ended.because


def provisional_text(trial: Trial) -> str:
    """Returns `provisional: from 1 burst of trial 3, before its verdict`."""
    return f"provisional: from {counted(len(trial.bursts), 'burst')} of trial {trial.number}, before its verdict"


def sentence(reason: Reason) -> str:
    """Returns a reason in words."""
    return SENTENCES[reason.kind](reason.figures)


def divergence_text(figures: Figures) -> str:
    """Returns `loss at step 1 is 9.9, trial 0 had 6.9 (tolerance 2.0 %)`."""
    tolerance = percent(figures["tolerance"])
    had = f"trial {figures['against']} had {figures['against_loss']:.4g}"
    return f"loss at step {figures['step']} is {figures['loss']:.4g}, {had} (tolerance {tolerance})"


def _compared(figures: Figures) -> str:
    """Returns `+12.0 % over trial 3 in wall-clock time (2 interleaved pairs, noise ±3.0 %), +9.0 % in CPU time (noise
    ±1.0 %)`. Only the gain in wall-clock time names its bursts."""
    wall, cpu = figures["wall"], figures["cpu"]
    said = f"{gain(wall['gain'])} over trial {figures['against']} in wall-clock time ({_bursts(wall)}, {_noise(wall)})"
    return said if cpu is None else f"{said}, {gain(cpu['gain'])} in CPU time ({_noise(cpu)})"


def _bursts(measure: Figures) -> str:
    if measure["pairs"]:
        return counted(measure["pairs"], "interleaved pair")
    ours, theirs = measure["bursts"], measure["against_bursts"]
    first = "first burst" if ours == 1 else f"median of {ours} bursts"
    return f"{first} against {theirs}"


def _noise(measure: Figures) -> str:
    return "too noisy to compare" if measure["band"] > MAX_BAND else f"noise ±{percent(measure['band'])}"


def _together(figures: Figures) -> str:
    between = f"{gain(figures['predicted_low'])} to {gain(figures['predicted_high'])}"
    together = f"{gain(figures['together'])} ± {percent(figures['together_half_width'])}"
    return (
        f"{_compared(figures)}, predicted {gain(figures['predicted'])} (90 %: {between}): together {together}, "
        f"{_likely(figures['probability'])} to be a gain"
    )


def _likely(probability: float) -> str:
    """Returns `95 % likely`; never 100 %."""
    return "more than 99 % likely" if probability > 0.99 else f"{percent(probability, 0)} likely"


def _failed(figures: Figures) -> str:
    where = "" if figures["rank"] is None else f" on rank {figures['rank']}"
    when = "" if figures["phase"] is None else f" in {figures['phase']}"
    return f"{figures['failure']}{when}{where}: {figures['evidence']}"


def _not_acting(figures: Figures) -> str:
    return "; ".join(
        f"{each['knob']} was set to {each['wanted']!r}, the built model has {each['built']!r}"
        for each in figures["knobs"]
    )


def _subset_measured(figures: Figures) -> str:
    if figures["symptom"]:
        return f"fails: {figures['symptom']}"
    cost = math.expm1(figures["log_cost"] or 0.0)
    return f"{gain(cost)} time per token compared with trial {figures['against']}"


def _at_full_size(figures: Figures) -> str:
    """Returns `+2.0 % predicted at full size over trial 1 (90 %: -1.0 % to +5.0 %), P(fits) 93 %; at this size +3.0 %
    (first burst against 1, noise ±1.5 %)`."""
    if figures["gain"] is None:
        return "not predicted at full size yet"
    between = f"{gain(figures['gain_low'])} to {gain(figures['gain_high'])}"
    said = f"{gain(figures['gain'])} predicted at full size over trial {figures['against']} (90 %: {between})"
    if figures["fits_probability"] is not None:
        said += f", P(fits) {percent(figures['fits_probability'], 0)}"
    wall = figures.get("wall")
    return f"{said}; at this size {gain(wall['gain'])} ({_bursts(wall)}, {_noise(wall)})" if wall else said


def _costs_nothing(figures: Figures) -> str:
    over = gain_interval(figures["gain"], figures["gain_low"], figures["gain_high"])
    ours, theirs = counted(figures["bursts"], "burst"), figures["against_bursts"]
    named = ", ".join(figures["taken"])
    lost = f"{over} compared with trial {figures['against']}, {ours} against {theirs}"
    return f"taking out {named} costs nothing beyond the noise: {lost}"


SENTENCES: dict[ReasonKind, Callable[[Figures], str]] = {
    **proposals.SENTENCES,
    ReasonKind.FIRST_TO_RUN: lambda figures: "the first recipe that runs",
    ReasonKind.PREDICTED_AT_FULL_SIZE: _at_full_size,
    ReasonKind.NOT_PREDICTED_TO_FIT: lambda f: f"P(fits) at full size is {percent(f['fits_probability'], 0)}",
    ReasonKind.FAR_BEYOND_NOISE: lambda f: f"decided by wall-clock time, far beyond the noise: {_compared(f)}",
    ReasonKind.INTERLEAVED_REPEATS: lambda f: f"decided by wall-clock time, in interleaved repeats: {_compared(f)}",
    ReasonKind.CPU_TIME: lambda f: f"wall-clock time is too noisy, decided by CPU time: {_compared(f)}",
    ReasonKind.WITHIN_PREDICTION: lambda figures: f"within the prediction: {_together(figures)}",
    ReasonKind.COSTS_NOTHING: _costs_nothing,
    ReasonKind.WITHIN_NOISE: lambda figures: f"no gain beyond the noise: {_compared(figures)}",
    ReasonKind.PREDICTION_UNDECIDED: lambda figures: f"no gain beyond the noise: {_together(figures)}",
    ReasonKind.NO_GAIN: lambda figures: f"no gain: {_compared(figures)}",
    ReasonKind.LOSSES_DIVERGE: lambda f: f"is labelled training-equivalent, but its {divergence_text(f)}",
    ReasonKind.SUBSET_MEASURED: _subset_measured,
    ReasonKind.NO_STEP_TIMES: lambda figures: "the burst gave no step times",
    ReasonKind.BURST_FAILED: _failed,
    ReasonKind.DID_NOT_RUN: lambda figures: f"the trial ended with status {figures['status']}",
    ReasonKind.NOT_ACTING: _not_acting,
    ReasonKind.NOT_IN_TRACE: lambda figures: f"the trace shows no effect: {figures['missing']}",
}
