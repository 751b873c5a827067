"""Proposals and trials: what is tried next and why, and its results.

The policy makes a `Proposal` for the loop; a `Trial` is a proposal with its results. The journal stores trials, from
which the policy decides again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from statistics import NormalDist
from typing import Any

from analyzers.diagnosis import Analysis, Wall
from policies.reason import Reason
from trainer.burst import BurstPhase, FailureKind, Outcome
from trainer.fidelity import Fidelity, at_fidelity
from trainer.recipe import Recipe

Changes = dict[str, tuple[Any, Any]]  # knob -> (from, to)
Z_90 = 1.645  # standard deviations on either side of a 90 % interval
AFTER_THE_STEPS = (BurstPhase.TRACE, BurstPhase.CHECK)


class Phase(StrEnum):
    FIT = "fit"
    SCALE = "scale"
    PROFILE = "profile"
    RETUNE = "retune"
    ABLATION = "ablation"


# phases of the search, in the order in which they propose
PHASES = (Phase.FIT, Phase.SCALE, Phase.PROFILE, Phase.RETUNE)


class Status(StrEnum):
    OK = "ok"
    OOM = "oom"
    FAILED = "failed"
    NOOP = "noop"


def status_of(outcome: Outcome) -> Status:
    """Returns the status of a trial by one outcome, before the check that the change acted."""
    if outcome.failure is None:
        return Status.OK
    return Status.OOM if outcome.failure.kind is FailureKind.OOM else Status.FAILED


class Verdict(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted effect of a proposal. Gains are fractions of throughput: 0.15 is 15 % more tokens per second."""

    gain: float | None = None
    gain_low: float | None = None  # bounds of its 90 % interval
    gain_high: float | None = None
    gain_bound: float | None = None  # the most that `gain` can be: all recoverable time of its walls, else `gain_high`
    peak_gib: float | None = None
    fits_probability: float | None = None  # probability, 0..1
    published: bool = False  # true if it is from published effects, not from the estimate

    @property
    def expected_improvement(self) -> float | None:
        """Returns the expected improvement of log throughput times P(fits); None if no gain was predicted.

        A loss counts as 0, since the change would not be kept.
        """
        if self.gain is None:
            return None
        mean, chance = math.log1p(self.gain), 1.0 if self.fits_probability is None else self.fits_probability
        if self.gain_low is None or self.gain_high is None or self.gain_high <= self.gain_low:
            return max(mean, 0.0) * chance
        deviation = (math.log1p(self.gain_high) - math.log1p(self.gain_low)) / (2 * Z_90)
        normal = NormalDist()
        return (deviation * normal.pdf(mean / deviation) + mean * normal.cdf(mean / deviation)) * chance


@dataclass(frozen=True, kw_only=True)
class FixShare:
    """One named part of a proposal: a file of `policies/fixes`, or a knob by itself, with the `knobs` that it changes.

    `predicted_share` is the gain (a fraction of throughput) that is lost without it or, if the rest is illegal, that it
    brings alone; None if that is illegal too, or its gain not known. `frees_gib` is the memory that it frees on the
    hottest GPU, if the parent does not fit.
    """

    fix: str
    wall: Wall | None
    knobs: tuple[str, ...]
    predicted_share: float | None = None
    frees_gib: float | None = None


class ChangeState(StrEnum):
    """The verdict on one change of the tuned recipe."""

    TAKEN_OUT = "taken out"  # without it nothing is lost beyond the noise
    COSTS = "costs"  # bursts without it are slower, beyond the noise
    UNDECIDED = "undecided"  # bursts without it show neither
    NOT_MEASURED = "not measured"  # no burst lacked it
    PREDICTED = "predicted"  # no burst was spent on it: a loss without it is predicted
    MAY_NOT_FIT = "may not fit"  # without it
    ILLEGAL = "illegal"  # without it


@dataclass(frozen=True, kw_only=True)
class ChangeShare:
    """One named change from the given recipe to the tuned one: a fix, or a knob by itself, with its `knobs`.

    A share is the gain of the tuned recipe over the same recipe without the change (a fraction of throughput):
    `predicted_share` at the end of the study, None if that recipe is illegal; `obtained_share` with its 90 % interval,
    None if no burst ran without the change. `obtained_with` names changes that were taken out together with it: then
    the obtained share is of all of them together.
    """

    fix: str
    wall: Wall | None
    knobs: tuple[str, ...]
    predicted_share: float | None
    obtained_share: float | None = None
    obtained_low: float | None = None
    obtained_high: float | None = None
    obtained_with: tuple[str, ...] = ()
    state: ChangeState


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The next recipe to try.

    `fix` is the name of the largest of `fixes`; without any it is `base`, `ablation` or `bisect`. `interaction` is the
    predicted gain that no single fix accounts for. `because` is the reason as text, in journals without `reason`.
    `fidelity` is the size of its bursts; None: the recipe itself runs.
    """

    recipe: Recipe
    parent: int | None  # number of the trial it was made from; None for the base recipe
    phase: Phase
    fix: str
    because: str = ""
    reason: Reason | None = None
    fixes: tuple[FixShare, ...] = ()
    interaction: float | None = None
    predicted: Prediction = Prediction()
    fidelity: Fidelity | None = None

    @cached_property
    def ran(self) -> Recipe:
        """Returns the recipe that its bursts run: its own, or its proxy."""
        return at_fidelity(self.recipe, self.fidelity)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One proposal and its results.

    `outcomes` has one outcome per burst, in order; repeats are not merged. `verdict_because` is the verdict's reason as
    text, in journals without reasons. `provisional` marks a verdict on the bursts so far, before the loop's own.
    """

    number: int
    proposal: Proposal
    changes: Changes
    bursts: tuple[int, ...]
    outcomes: tuple[Outcome, ...]
    status: Status
    analysis: Analysis | None = None
    verdict: Verdict | None = None
    verdict_reason: Reason | None = None
    verdict_because: str = ""
    provisional: bool = False

    @property
    def ran_out(self) -> bool:
        """Returns true if training the recipe itself ran out of memory, and not the profiler or the check after the
        steps."""
        failures = [outcome.failure for outcome in self.outcomes if outcome.failure]
        return self.status is Status.OOM and not any(failure.phase in AFTER_THE_STEPS for failure in failures)

    @property
    def accepted(self) -> bool:
        return self.verdict is Verdict.ACCEPTED

    @property
    def recipe(self) -> Recipe:
        return self.proposal.recipe

    @property
    def fidelity(self) -> Fidelity | None:
        """Returns the size of the trial's bursts; None: the full recipe."""
        return self.proposal.fidelity

    @property
    def ran(self) -> Recipe:
        """Returns the recipe of the trial's bursts: its own, or its proxy."""
        return self.proposal.ran
