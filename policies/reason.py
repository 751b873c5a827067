"""The reason why a recipe was proposed, a trial judged or a study ended: a kind and its figures.

Data only: words are made of a reason where it is shown (`autotune.looks.reasons`), and no code parses them. Gains
are fractions of throughput, `lost_us` and `step_us` microseconds of an average traced step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ReasonKind(StrEnum):
    """The kind of a reason. The comment on each kind lists its figures; all are optional.

    COMPARISON = {against, wall: MEASURE, cpu: MEASURE | null}: `against` is the number of the trial compared with, and
    MEASURE = {gain, band, pairs, bursts, against_bursts, pairs_agree}: the gain as a fraction of throughput, the noise
    band of this comparison as another fraction, the number of interleaved pairs of bursts whose mean it is (0: it is of
    the medians of all bursts of both sides), and the number of bursts of each side.
    """

    # Proposals. WALL: {wall | cause, headline, lost_us, step_us} of the incumbent; LEARNED: {trials, traced, lessons:
    # [{study, trials}]}; FAILED: {trial, kind, phase, rank, limit_gib} of the recipe that does not fit
    BASE = "base"  # the recipe as given; no figures
    SUBSET = "subset"  # taken: the names of the differences that a bisection takes from B; of: how many there are
    FULL_SIZE = "full_size"  # trial: the smaller run that was measured instead; best: true, or false for the reference
    TAKEN_OUT = "taken_out"  # taken: the names of the changes that the tuned recipe is tried without; of: how many it
    # has; probability: that nothing is lost without them
    REFERENCE = "reference"  # the trial the speed-up is relative to; figures of FITS_CHEAPEST
    FITS_CHEAPEST = "fits_cheapest"  # failed, fixes, fits_probability, peak_gib, limit_gib
    FITS_FASTEST = "fits_fastest"  # failed, step_s, spread, fits_probability, learned
    FITS_LIKELIEST = "fits_likeliest"  # figures of FITS_FASTEST; the most likely to fit, since none fits confidently
    EXPECTED_IMPROVEMENT = "expected_improvement"  # wall, parts {part: [from_s, to_s]}, gain, gain_low, gain_high,
    # fits_probability, runner_up (expected improvement of the next candidate less, a fraction), learned
    SAMPLED = "sampled"  # figures of EXPECTED_IMPROVEMENT, and sampler: the Optuna sampler whose point it is nearest to
    CLAIMED = "claimed"  # wall, fix, parts [{part, lost_us}], claimed_us, step_us, gain, gain_bound, fits_probability
    PUBLISHED = "published"  # wall, knob, walls, gain, spread, evidence, source, gain_bound

    # Ends of a search
    NOTHING_FITS = "nothing_fits"  # tried, fewest_nodes, most_gpus; left: true if only the budget ended the search
    BISECTED = "bisected"  # culprits [[difference]], probability, confident, symptom | null: of a bisection
    # kind: a failure that no fix addresses, phase: of its burst, versions: {package: version} that the ranks had
    FAILED = "failed"
    NOTHING_LEFT = "nothing_left"  # noise (difference between two bursts), patience (published settings without a gain)
    NOT_WORTH_A_BURST = "not_worth_a_burst"  # expected_improvement, limit, patience
    SAMPLER_EXHAUSTED = "sampler_exhausted"  # expected_improvement, sampler, patience
    TOO_EXPENSIVE = "too_expensive"  # cost_gpu_hours and saved_gpu_hours of the next burst, planned_gpu_hours, unit (of
    # what the hours are: GPU or rank)
    OUT_OF_PATIENCE = "out_of_patience"  # without_gain, gain_bound (None: unknown), noise
    BUDGET_SPENT = "budget_spent"  # bursts, budget, reserved: bursts of it that are kept for the ablation
    GPU_HOURS_SPENT = "gpu_hours_spent"  # gpu_hours, max_gpu_hours, burst_gpu_hours, unit
    DEADLINE_REACHED = "deadline_reached"  # at: the time (text), if a timer ended a burst
    INTERRUPTED = "interrupted"  # because: the signal or error, in words

    # Reasons against a considered fix: gain, gain_low, gain_high, fits_probability if the surrogate has them
    NOT_APPLICABLE = "not_applicable"  # because: the fix's own words
    ILLEGAL = "illegal"  # because: the rules' or the recipe's words
    ALREADY_TRIED = "already_tried"  # trial
    REFUSED_BEFORE = "refused_before"  # trial, values {knob: [value]}, evidence
    MISSING_SOFTWARE = "missing_software"  # trial, knobs, software
    LOST_BEFORE = "lost_before"  # trial
    UNDONE_BEFORE = "undone_before"  # trial: it gained by the opposite change
    MAY_NOT_FIT = "may_not_fit"  # asked: P(fits) that a burst needs
    PREDICTED_LOSS = "predicted_loss"
    LOST_IN_NOISE = "lost_in_noise"  # noise: difference between two bursts
    NO_EVIDENCE = "no_evidence"  # the surrogate sees no change, and the trace no loss that it claims
    OUTRANKED = "outranked"  # expected_improvement
    TOO_LITTLE = "too_little"  # expected_improvement, limit

    # Verdicts of smaller runs: against | null, gain, gain_low, gain_high and fits_probability as predicted at full size
    # after the burst, wall: MEASURE | null of bursts of the same size
    PREDICTED_AT_FULL_SIZE = "predicted_at_full_size"
    NOT_PREDICTED_TO_FIT = "not_predicted_to_fit"

    # Verdicts: accepted
    FIRST_TO_RUN = "first_to_run"  # figures of PREDICTED_AT_FULL_SIZE for a smaller run, else none
    FAR_BEYOND_NOISE = "far_beyond_noise"  # COMPARISON
    INTERLEAVED_REPEATS = "interleaved_repeats"  # COMPARISON
    CPU_TIME = "cpu_time"  # COMPARISON
    WITHIN_PREDICTION = "within_prediction"  # COMPARISON and PREDICTED
    COSTS_NOTHING = "costs_nothing"  # taken (names), against, gain, gain_low, gain_high (90 %), bursts, against_bursts:
    # the tuned recipe without these changes
    # Verdicts: inconclusive
    WITHIN_NOISE = "within_noise"  # COMPARISON
    PREDICTION_UNDECIDED = "prediction_undecided"  # COMPARISON and PREDICTED
    # Verdicts: rejected
    SUBSET_MEASURED = "subset_measured"  # against, log_cost (over that trial), symptom | null: of a subset of changes
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
    """A reason. `figures` hold JSON values only (numbers, text, lists, mappings); units are in their names."""

    kind: ReasonKind
    figures: Mapping[str, Any] = field(default_factory=dict)
