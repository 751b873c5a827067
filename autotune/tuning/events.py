"""The lines of a study's journal: one struct per event, distinguished by the field `event`.

The loop acts only on recorded events, and everything else (trials, report, tuned recipe) is derived from them by
`autotune.tuning.history`. `at` is seconds since the epoch.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from analyzers.diagnosis import Analysis
from policies.reason import Reason
from policies.trial import ChangeShare, FixShare, Phase, Status, Verdict
from trainer.burst import Failure, Outcome
from trainer.fidelity import Fidelity
from trainer.microbenchmarks.row import Row
from trainer.probe.links import Links

SCHEMA = 1

EndStatus = Literal["converged", "budget", "interrupted", "infeasible"]
Purpose = Literal["measure", "repeat"]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    at: float = 0.0


class StudyStarted(_Event, frozen=True, kw_only=True, tag="study"):
    """First line of every journal. `recipe` is the base recipe, `environment` the versions and the host; `other` is
    recipe B of a bisection, None of a tuning run."""

    schema: int = SCHEMA
    version: str
    name: str
    recipe: dict[str, Any]
    digest: str
    seed: int
    environment: dict[str, str]
    other: dict[str, Any] | None = None


class TunerStarted(_Event, frozen=True, kw_only=True, tag="tuner"):
    """A tuner process started or resumed the study: its limits and its host.

    `recipe`: as named on the command line; `until`: seconds since the epoch; `ablate`: bursts kept for the ablation;
    `job`: the tuner's Slurm job, if any; `nodes`: of the launcher, None for any number.
    """

    recipe: str
    budget: int
    max_gpu_hours: float | None = None
    until: float | None = None
    ablate: int = 0
    host: str = ""
    process: int | None = None
    gpu_hour_price: float | None = None
    job: str | None = None
    nodes: int | None = None


class LessonAdded(_Event, frozen=True, kw_only=True, tag="lent"):
    """Evidence from another study or a probe on the same type of GPU: mean and standard deviation of each factor of its
    surrogate."""

    study: str
    trials: int
    mean: dict[str, float]
    deviation: dict[str, float]


class Probed(_Event, frozen=True, kw_only=True, tag="probe"):
    """The cluster as measured before the first burst, on `ranks` ranks for `seconds`: the links between the nodes, and
    the `rows` of a probe. `failure`: what ended it early."""

    links: Links | None
    rows: tuple[Row, ...] = ()
    failure: Failure | None = None
    ranks: int
    seconds: float

    @property
    def gpu_hours(self) -> float:
        """Returns the GPU-hours of the probe, start-up included."""
        return self.ranks * self.seconds / 3600


class Proposed(_Event, frozen=True, kw_only=True, tag="proposal"):
    """A recipe that will be tried as trial `trial`, by bursts of its `fidelity` (None: at full size); gains are
    fractions of throughput."""

    trial: int
    parent: int | None
    phase: Phase
    fix: str
    because: str = ""  # the sentence of journals without `reason`
    reason: Reason | None = None
    fixes: tuple[FixShare, ...] = ()
    interaction: float | None = None
    recipe: dict[str, Any]
    changes: dict[str, tuple[Any, Any]]
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    gain_bound: float | None = None
    peak_gib: float | None = None
    fits_probability: float | None = None
    published: bool = False
    fidelity: Fidelity | None = None


class Refused(_Event, frozen=True, kw_only=True, tag="refused"):
    """The rules forbid the proposal's recipe: it was not run and used no burst."""

    trial: int
    outcome: Outcome


class BurstStarted(_Event, frozen=True, kw_only=True, tag="burst_started"):
    """A burst starts; without `fidelity` it runs the trial's recipe itself."""

    burst: int
    trial: int
    purpose: Purpose
    fidelity: Fidelity | None = None


class BurstFinished(_Event, frozen=True, kw_only=True, tag="burst_finished"):
    """A burst ended. `seconds`: its whole duration by the tuner's clock, start-up included; `ranks`: GPUs used."""

    burst: int
    trial: int
    outcome: Outcome
    seconds: float
    ranks: int

    @property
    def gpu_s(self) -> float:
        """Returns GPU-seconds, as the engine reported, else by the tuner's clock."""
        cost_s = self.outcome.cost_s
        return (self.seconds if cost_s is None else cost_s) * self.ranks


class BurstLost(_Event, frozen=True, kw_only=True, tag="burst_lost"):
    """The machine failed, not the recipe: the burst runs again under the same number. `seconds` as in BurstFinished,
    `cost_s` as in its outcome; None in journals of older versions."""

    burst: int
    trial: int
    failure: Failure
    seconds: float | None = None
    cost_s: float | None = None


class Analyzed(_Event, frozen=True, kw_only=True, tag="analysis"):
    """The analysis of the burst's traces; without one, `because` says why there is none."""

    burst: int
    trial: int
    analysis: Analysis | None
    because: str = ""


class Judged(_Event, frozen=True, kw_only=True, tag="verdict"):
    """The verdict on a trial; journals of versions before reasons have the text `because` instead."""

    trial: int
    status: Status
    verdict: Verdict
    reason: Reason | None = None
    because: str = ""


class AblationStarted(_Event, frozen=True, kw_only=True, tag="ablation"):
    """The search is over: at most `bursts` bursts show which changes of trial `tuned` are not needed."""

    tuned: int
    bursts: int


class Ended(_Event, frozen=True, kw_only=True, tag="ended"):
    """A run of the tuner ended; a resumed study continues after it.

    `changes`: those of the tuned recipe over the base recipe, with their shares; () if the run was interrupted, if no
    recipe runs, and in a bisection.
    """

    status: EndStatus
    because: str = ""  # the sentence of journals without `reason`
    reason: Reason | None = None
    changes: tuple[ChangeShare, ...] = ()


Event = (
    StudyStarted
    | TunerStarted
    | LessonAdded
    | Probed
    | Proposed
    | Refused
    | BurstStarted
    | BurstFinished
    | BurstLost
    | Analyzed
    | Judged
    | AblationStarted
    | Ended
)
