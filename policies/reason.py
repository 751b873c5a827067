"""Why a recipe was proposed, a trial judged or a study ended: a kind and its figures.

Data only: words are made of a reason where it is shown (`autotune.looks.reasons`), and no code reads them back. Gains are
fractions of throughput, `lost_us` and `step_us` microseconds of an average traced step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class ReasonKind(StrEnum):
    """What decided. The figures of each kind are listed beside it; all are optional."""

    # Proposals. WALL: {wall | cause, headline, lost_us, step_us} of the incumbent; LEARNED: {trials, traced, lessons:
    # [{study, trials}]}; FAILED: {trial, kind, phase, rank, limit_gib} of the recipe that does not fit
    BASE = "base"  # the recipe as given; no figures
    REFERENCE = "reference"  # what the speed-up is over; as FITS_CHEAPEST
    FITS_CHEAPEST = "fits_cheapest"  # failed, fixes, fits_probability, peak_gib, limit_gib
    FITS_FASTEST = "fits_fastest"  # failed, step_s, spread, fits_probability, learned
    FITS_LIKELIEST = "fits_likeliest"  # the same: none surely fits
    EXPECTED_IMPROVEMENT = "expected_improvement"  # wall, parts {part: [from_s, to_s]}, gain, gain_low, gain_high,
    # fits_probability, runner_up (expected improvement of the next candidate less, a fraction), learned
    SAMPLED = "sampled"  # the same, and sampler: the point of an Optuna sampler taken to the nearest candidate
    CLAIMED = "claimed"  # wall, fix, parts [{part, lost_us}], claimed_us, step_us, gain, gain_bound, fits_probability
    PUBLISHED = "published"  # wall, knob, walls, gain, spread, evidence, source, gain_bound

    # Ends of a search
    NOTHING_FITS = "nothing_fits"  # tried, fewest_nodes, most_gpus
    FAILED = "failed"  # kind: a failure that no fix addresses
    NOTHING_LEFT = "nothing_left"  # noise (two bursts differ by up to), patience (published settings in vain)
    NOT_WORTH_A_BURST = "not_worth_a_burst"  # expected_improvement, limit, patience
    SAMPLER_EXHAUSTED = "sampler_exhausted"  # expected_improvement, sampler, patience
    TOO_EXPENSIVE = "too_expensive"  # cost_gpu_hours, saved_gpu_hours, planned_gpu_hours: of the next burst
    OUT_OF_PATIENCE = "out_of_patience"  # without_gain, gain_bound (None: unknown), noise
    BUDGET_SPENT = "budget_spent"  # bursts, budget
    GPU_HOURS_SPENT = "gpu_hours_spent"  # gpu_hours, max_gpu_hours, burst_gpu_hours
    DEADLINE_REACHED = "deadline_reached"
    INTERRUPTED = "interrupted"

    # Why a considered fix is not proposed: gain, gain_low, gain_high, fits_probability where the surrogate has them
    NOT_APPLICABLE = "not_applicable"  # because: the fix's own words
    ILLEGAL = "illegal"  # because: the rules' or the recipe's words
    ALREADY_TRIED = "already_tried"  # trial
    REFUSED_BEFORE = "refused_before"  # trial, values {knob: [value]}, evidence
    LOST_BEFORE = "lost_before"  # trial
    UNDONE_BEFORE = "undone_before"  # trial: it gained by the opposite change
    MAY_NOT_FIT = "may_not_fit"  # asked: P(fits) that a burst needs
    PREDICTED_LOSS = "predicted_loss"
    WITHIN_NOISE = "within_noise"  # noise
    NO_EVIDENCE = "no_evidence"  # the surrogate sees no change, and the trace no loss that it claims
    OUTRANKED = "outranked"  # expected_improvement
    TOO_LITTLE = "too_little"  # expected_improvement, limit


@dataclass(frozen=True, kw_only=True)
class Reason:
    """`figures` hold JSON values only (numbers, text, lists, mappings); units are in their names."""

    kind: ReasonKind
    figures: Mapping[str, Any] = field(default_factory=dict)
