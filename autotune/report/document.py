"""Makes report.json: a study as other programs read it (schema 1), from its history alone.

Pure: the same history gives the same document. Units are in the names; gains are fractions of throughput. The other
reports are made from this document and its trials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb
from statistics import median
from typing import Any

import msgspec

from analyzers.diagnosis import Diagnosis, Wall
from autotune.looks.fix_names import parts_of
from autotune.looks.reasons import proposal_text, verdict_text
from autotune.probe.document import ProbedRow, probed_rows
from autotune.tuning.events import EndStatus
from autotune.tuning.history import History
from autotune.tuning.lines import best_speedup
from autotune.tuning.provisional import with_provisional_verdicts
from autotune.tuning.speedup import INTERVAL_SINCE, Speedup, obtained
from policies.changes.legality import numerics_of
from policies.reason import Reason
from policies.trial import ChangeShare, Phase, Status, Trial, Verdict
from trainer.burst import Difference, Failure, Outcome
from trainer.fidelity import Fidelity
from trainer.probe.links import Links
from trainer.recipe import Recipe
from trainer.recipe.knobs import Numerics

SCHEMA = 1


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """The median of the measured steps (median of the bursts' medians), and its distribution-free interval of at least
    95 %; `n` steps over all bursts of the trial."""

    median: float
    low: float
    high: float
    n: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction before the burst. Gains are fractions of throughput, `gain_low` and `gain_high` those of the 90 %
    interval."""

    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    gain_bound: float | None = None
    peak_gib: float | None = None
    fits_probability: float | None = None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of all bursts of a trial: peaks are the largest of any burst, losses those of the first, the cost is
    their sum (null if an engine did not report it)."""

    step_us: StepTime
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float | None
    peak_gib: list[float]  # per rank
    loss: list[float]  # per step, warm-up included
    cost_s: float | None  # from start to end, without queueing; times the ranks of a burst it is GPU-seconds
    simulated: bool = False  # true if computed by a model of the cluster: nothing was measured
    outside_gib: list[float] = []  # per rank, on its GPU outside torch's allocator; [] on CPUs and where not known


class FixEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One named part of a trial's change: a fix, or a knob by itself under the knob's name. Shares are gains, fractions
    of throughput."""

    fix: str
    wall: Wall | None  # the wall that it acts on
    knobs: list[str]  # knobs that it changed
    predicted_share: float | None  # the predicted gain that is lost without it; null if it cannot be removed
    obtained_share: float | None  # the obtained gain if it is the only fix of the trial, else null
    frees_gib: float | None  # memory freed on the rank with the highest peak, if the parent does not fit


class TrialEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One trial.

    `because` and `verdict_because` are the reasons in words, `reason` and `verdict_reason` the same as data: null in
    journals of older versions, and `verdict_reason` also without a verdict. `fix` is the name of the largest of
    `fixes`, or `base`. `provisional`: judged on the bursts so far, before the study's own verdict.
    """

    number: int
    parent: int | None
    phase: Phase
    fix: str
    because: str
    reason: Reason | None = None
    fixes: list[FixEntry] = []
    interaction: float | None = None  # predicted gain beyond the sum of the predicted shares
    changes: dict[str, tuple[Any, Any]]
    predicted: Prediction
    status: Status
    failure: Failure | None
    outcome: Measured | None
    diagnosis: Diagnosis | None
    verdict: Verdict | None
    verdict_because: str
    verdict_reason: Reason | None = None
    provisional: bool = False
    numerics: Numerics
    fidelity: Fidelity | None = None  # size of its bursts; null: the recipe itself ran


class SizeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The bursts of one size: those of the recipes themselves, or of proxies with fewer nodes and layers."""

    nodes: int
    layers: int
    full_size: bool
    bursts: int
    gpu_hours: float


class ProbeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The probe before the first burst: its cost, and its rows with the figures that the tables expect."""

    ranks: int
    seconds: float  # start-up included
    gpu_hours: float
    failure: Failure | None
    rows: list[ProbedRow]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of report.json.

    `reference` is the trial that the speed-up is relative to: the base recipe if it runs, else the recipe that runs
    with the fewest changes; `base` is an older name of this field (the base recipe is trial 0). `best` is the last
    accepted one. They and the speed-up are null if nothing ran. `speedup_provisional`: fewer than two bursts per side;
    `speedup_since`: the first version whose interval includes the noise between bursts; `warnings`: where the journal
    disagrees with the bursts' own files.
    """

    schema: int = SCHEMA
    study: str
    status: EndStatus
    base: int | None
    reference: int | None
    best: int | None
    speedup: float | None
    speedup_ci: tuple[float, float] | None
    speedup_provisional: bool = False
    speedup_since: str = INTERVAL_SINCE
    warnings: list[str] = []
    gpu_hours: float  # GPU-hours of the probe and of all bursts, failed ones included
    idle_gpu_hours: float = 0.0  # not in gpu_hours: an allocation was idle while the tuner decided
    simulated: bool  # no figure was measured, gpu_hours are simulated as well
    gpu_hour_price: float | None = None
    planned_gpu_hours: float | None = None  # GPU-hours of the training that the tuned recipe is for
    saved_gpu_hours: tuple[float, float, float] | None = (
        None  # planned_gpu_hours saved by the speed-up: low, middle, high
    )
    measured_at_full_size: bool = True  # false: only proxies of the best recipe ran
    sizes: list[SizeEntry] = []  # the smallest first
    environment: dict[str, str]
    links: Links | None  # links between the nodes, as measured before the first burst
    probe: ProbeEntry | None = None  # null: no rows were probed
    fixes: list[
        ChangeShare
    ] = []  # named changes of the tuned recipe over the base recipe, as of the last end of the tuner
    unlike_production: list[
        Difference
    ]  # differences of the best trial's bursts from a production run, if the engine reports them
    trials: list[TrialEntry]


def document_of(history: History, *, gpu_hour_price: float | None = None, warnings: Sequence[str] = ()) -> Document:
    """Returns the report of a study. A study without an end is `interrupted`; an open trial is judged provisionally.
    The price is the journal's if none is given."""
    history = with_provisional_verdicts(history)
    base, best = history.reference, history.best
    gained = best_speedup(history)
    planned = best.recipe.tune.planned_gpu_hours if best else None
    price = history.tuner.gpu_hour_price if history.tuner else None
    return Document(
        study=history.study.name if history.study else "",
        status=history.ended.status if history.ended else "interrupted",
        base=base.number if base else None,
        reference=base.number if base else None,
        best=best.number if best else None,
        speedup=gained.value if gained else None,
        speedup_ci=(gained.low, gained.high) if gained else None,
        speedup_provisional=gained is not None and best is not base and gained.provisional,
        warnings=list(warnings),
        gpu_hours=history.gpu_hours,
        idle_gpu_hours=history.idle_gpu_hours,
        simulated=history.simulated,
        gpu_hour_price=price if gpu_hour_price is None else gpu_hour_price,
        planned_gpu_hours=planned,
        saved_gpu_hours=_saved(planned, gained),
        measured_at_full_size=not history.only_proxies,
        sizes=_sizes(history),
        environment=dict(sorted(history.study.environment.items())) if history.study else {},
        links=history.links,
        probe=_probe(history),
        fixes=list(history.ended.changes) if history.ended else [],
        unlike_production=_differences(best),
        trials=[_entry(trial, history) for trial in history.trials],
    )


def _probe(history: History) -> ProbeEntry | None:
    found, study = history.probed, history.study
    if found is None or study is None or not found.rows:
        return None
    return ProbeEntry(
        ranks=found.ranks,
        seconds=found.seconds,
        gpu_hours=found.gpu_hours,
        failure=found.failure,
        rows=probed_rows(found.rows, Recipe.model_validate(study.recipe)),
    )


def _sizes(history: History) -> list[SizeEntry]:
    sizes = [history.proposals[burst.trial][0].fidelity or history.full_size for burst in history.finished]
    return [
        SizeEntry(
            nodes=size.nodes,
            layers=size.layers,
            full_size=size == history.full_size,
            bursts=sizes.count(size),
            gpu_hours=hours,
        )
        for size, hours in history.fidelities.items()
    ]


def _differences(trial: Trial | None) -> list[Difference]:
    return next((outcome.unlike_production for outcome in trial.outcomes if outcome.ok), []) if trial else []


def measured(trial: Trial) -> Measured | None:
    """Returns the figures of a trial's bursts; None if no burst has step times."""
    good = [outcome for outcome in trial.outcomes if outcome.ok and outcome.step_us]
    if trial.status not in (Status.OK, Status.NOOP) or not good:
        return None
    steps = sorted(us for outcome in good for us in outcome.step_us)
    middle = median(median(outcome.step_us) for outcome in good)
    low, high = median_interval(steps)
    return Measured(
        step_us=StepTime(median=middle, low=min(low, middle), high=max(high, middle), n=len(steps)),
        tokens_per_s_per_gpu=tokens_per_s(good[0], middle),
        model_tflops_per_gpu=_median(outcome.model_tflops_per_gpu for outcome in good),
        peak_gib=_largest([outcome.peak_gib for outcome in good]),
        loss=good[0].loss,
        cost_s=_sum(outcome.cost_s for outcome in trial.outcomes),
        simulated=trial.recipe.burst.engine == "simulated",
        outside_gib=_largest([outcome.outside_gib for outcome in good]),
    )


def tokens_per_s(outcome: Outcome, step_us: float) -> float:
    """Returns tokens per second per GPU for a step of `step_us`."""
    return outcome.tokens_per_step / max(outcome.ranks, 1) / (step_us * 1e-6)


def median_interval(ordered: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Returns the narrowest pair of order statistics that contains the median with `confidence`; the extremes if there
    are too few values (binomial, no distribution assumed)."""
    n = len(ordered)
    outside, cut = 0.0, 0
    for k in range(n // 2):
        outside += 2 * comb(n, k) / 2**n
        if outside > 1 - confidence:
            break
        cut = k
    return ordered[cut], ordered[n - 1 - cut]


def failure_of(trial: Trial) -> Failure | None:
    """Returns the failure of a trial, including that of a repeat after a good burst; None if no burst failed."""
    return next((outcome.failure for outcome in trial.outcomes if outcome.failure), None)


def _entry(trial: Trial, history: History) -> TrialEntry:
    predicted = trial.proposal.predicted
    return TrialEntry(
        number=trial.number,
        parent=trial.proposal.parent,
        phase=trial.proposal.phase,
        fix=trial.proposal.fix,
        because=proposal_text(trial.proposal),
        reason=trial.proposal.reason,
        fixes=_fixes(trial, history),
        interaction=trial.proposal.interaction,
        changes=trial.changes,
        predicted=Prediction(**{name: getattr(predicted, name) for name in Prediction.__struct_fields__}),
        status=trial.status,
        failure=failure_of(trial),
        outcome=measured(trial),
        diagnosis=trial.analysis.diagnosis if trial.analysis else None,
        verdict=trial.verdict,
        verdict_because=verdict_text(trial),
        verdict_reason=trial.verdict_reason,
        provisional=trial.provisional,
        numerics=numerics_of(trial.changes),
        fidelity=trial.fidelity,
    )


def _fixes(trial: Trial, history: History) -> list[FixEntry]:
    parts = parts_of(trial.proposal, trial.changes)
    parent = None if trial.proposal.parent is None else history.attempted.get(trial.proposal.parent)
    gained = obtained(trial, parent, history.trials) if len(parts) == 1 else None
    return [
        FixEntry(
            fix=part.fix,
            wall=part.wall,
            knobs=list(part.knobs),
            predicted_share=part.predicted_share,
            obtained_share=gained.value - 1 if gained else None,
            frees_gib=part.frees_gib,
        )
        for part in parts
    ]


def _saved(planned: float | None, gained: Speedup | None) -> tuple[float, float, float] | None:
    """Returns the GPU-hours (low, middle, high) that a training of `planned` GPU-hours with the reference saves; None
    if either figure is not known."""
    if planned is None or gained is None:
        return None
    low, middle, high = (planned * (1 - 1 / ratio) for ratio in (gained.low, gained.value, gained.high))
    return low, middle, high


def _largest(bursts: Sequence[list[float]]) -> list[float]:
    """Returns the largest value of each rank over the bursts that have values."""
    by_rank = [values for values in bursts if values]
    return [max(values) for values in zip(*by_rank, strict=False)]


def _sum(values: Iterable[float | None]) -> float | None:
    """Returns the sum; None if any value is None."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
