"""Why a recipe was proposed, a trial judged or a study ended: a kind and its figures.

Data only: words are made of a reason where it is shown (`autotune.looks.reasons`), and no code reads them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ReasonKind(StrEnum):
    """What decided. The figures of each kind are listed beside it.

    COMPARISON = {against, wall: MEASURE, cpu: MEASURE | null}: `against` is the number of the trial compared with, and
    MEASURE = {gain, band, pairs, bursts, against_bursts, pairs_agree}: the gain as a fraction of throughput, the
    noise band of this comparison as one, the interleaved pairs of bursts that it is the mean of (0: medians of all
    bursts of both sides), and the bursts of each side.
    """

    BASE = "base"  # a proposal: the recipe as given; no figures

    # Verdicts: accepted
    FIRST_TO_RUN = "first_to_run"  # no figures
    FAR_BEYOND_NOISE = "far_beyond_noise"  # COMPARISON
    INTERLEAVED_REPEATS = "interleaved_repeats"  # COMPARISON
    CPU_TIME = "cpu_time"  # COMPARISON
    WITHIN_PREDICTION = "within_prediction"  # COMPARISON and PREDICTED
    # Verdicts: inconclusive
    WITHIN_NOISE = "within_noise"  # COMPARISON
    PREDICTION_UNDECIDED = "prediction_undecided"  # COMPARISON and PREDICTED
    # Verdicts: rejected
    NO_GAIN = "no_gain"  # COMPARISON
    LOSSES_DIVERGE = "losses_diverge"  # step, loss, against, against_loss, tolerance (a fraction)
    NO_STEP_TIMES = "no_step_times"  # no figures
    BURST_FAILED = "burst_failed"  # failure, phase | null, rank | null, evidence (the line that shows it)
    DID_NOT_RUN = "did_not_run"  # status
    NOT_ACTING = "not_acting"  # knobs: [{knob, wanted, built}]
    NOT_IN_TRACE = "not_in_trace"  # missing (the proof's own evidence)
    # PREDICTED = predicted, predicted_low, predicted_high (90 %), together, together_half_width (90 %): fractions of
    # throughput; probability (0..1) that it is a gain


@dataclass(frozen=True, kw_only=True)
class Reason:
    """`figures` hold JSON values only (numbers, text, lists, mappings); units are in their names."""

    kind: ReasonKind
    figures: Mapping[str, Any] = field(default_factory=dict)
