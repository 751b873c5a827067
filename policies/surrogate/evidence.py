"""The evidence of a trial, in the parts of the estimate: the step, its parts by traced rank, peaks of memory, an OOM.

Times are seconds: of an average traced step for parts, of the median measured step for the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from analyzers.diagnosis import Partition, RankTime, TraceReport
from policies.noise import deviation_of_a_burst, deviation_of_a_traced_step
from policies.situation import EP_KINDS, busy, exposed
from policies.trial import Trial
from trainer.burst import BurstPhase, FailureKind, Outcome
from trainer.recipe import Recipe
from trainer.recipe.layout import layout_of


@dataclass(frozen=True, kw_only=True)
class RankParts:
    """Seconds of PARTS on one traced rank, and its pipeline rank."""

    pipeline_rank: int
    seconds: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The measurements of one trial. `recipe` is the one that ran: the proxy where the trial's bursts were smaller.

    `step_s` is None if nothing was measured. `peak_gib` is by pipeline rank, empty if not measured. `denied_gib` is the
    size that the allocator could not hold when a rank ran out of memory, `outside_gib` the most memory that a rank's
    GPU held outside the allocator in any burst; None if not known.
    """

    number: int
    recipe: Recipe
    is_proxy: bool = False
    step_s: float | None
    deviation: float  # relative standard deviation of `step_s` from burst to burst
    scatter: float = 0.0  # relative standard deviation of a traced step of CPU ranks, between steps and bursts together
    work_s: float | None = None  # CPU time of a rank in a step, where ranks compute on CPUs
    ranks: tuple[RankParts, ...] = ()
    peak_gib: tuple[float, ...] = ()
    out_of_memory: bool = False
    denied_gib: float | None = None
    outside_gib: float | None = None


BEFORE_THE_STEPS = (BurstPhase.START, BurstPhase.INIT)
GARBAGE = "garbage_collection"  # a host activity


def evidence_of(trials: Sequence[Trial]) -> list[Evidence]:
    """Returns the evidence of every trial that measured a step or ran out of memory."""
    found = [_evidence(trial) for trial in trials]
    return [each for each in found if each.step_s is not None or each.out_of_memory]


def by_size(evidence: Sequence[Evidence]) -> list[list[Evidence]]:
    """Returns the evidence in groups of one model on one number of nodes: each group can be one table of candidates."""
    groups: dict[tuple[object, ...], list[Evidence]] = {}
    for each in evidence:
        groups.setdefault((each.is_proxy, each.recipe.cluster.nodes, each.recipe.architecture), []).append(each)
    return list(groups.values())


def _evidence(trial: Trial) -> Evidence:
    medians = [median(outcome.step_us) for outcome in trial.outcomes if outcome.ok and outcome.step_us]
    step_s = median(medians) / 1e6 if medians else None
    return Evidence(
        number=trial.number,
        recipe=trial.ran,
        is_proxy=trial.fidelity is not None,
        step_s=step_s,
        deviation=deviation_of_a_burst(trial) / math.sqrt(max(len(medians), 1)),
        scatter=deviation_of_a_traced_step(trial),
        work_s=_work_s(trial),
        ranks=_traced(trial, step_s),
        peak_gib=_peaks(trial),
        out_of_memory=trial.ran_out and not medians,
        denied_gib=min(filter(None, map(_denied_gib, trial.outcomes)), default=None),
        outside_gib=max(filter(None, map(_outside_gib, trial.outcomes)), default=None),
    )


def _denied_gib(outcome: Outcome) -> float | None:
    """Returns the size that an allocator could not hold: the highest peak of the ranks plus the allocation that failed;
    None if no rank ran out of memory, or either is not known."""
    failure = outcome.failure
    if failure is None or failure.kind is not FailureKind.OOM or failure.requested_gib is None or not outcome.peak_gib:
        return None
    return max(outcome.peak_gib) + failure.requested_gib


def _outside_gib(outcome: Outcome) -> float | None:
    """Returns the most memory outside the allocator of any rank.

    None if the burst failed before the first step, when some communicators do not exist yet.
    """
    failure = outcome.failure
    if failure is not None and failure.phase in BEFORE_THE_STEPS:
        return None
    reported = failure.outside_gib if failure is not None else None
    return max(outcome.outside_gib, default=reported)


def _work_s(trial: Trial) -> float | None:
    """Returns the median CPU seconds per step of a rank, the median over bursts; None on GPUs, or where CPU time was
    not measured."""
    if not trial.recipe.hardware.is_cpu:
        return None
    figures = [median(o.cpu_us) / max(o.ranks, 1) / 1e6 for o in trial.outcomes if o.ok and any(o.cpu_us)]
    return median(figures) if figures else None


def _peaks(trial: Trial) -> tuple[float, ...]:
    """Returns the highest peak of each pipeline rank over all bursts, GiB.

    Pipeline ranks are Megatron's outermost group.
    """
    stages = layout_of(trial.ran).pp
    peaks = [outcome.peak_gib for outcome in trial.outcomes if outcome.ok and outcome.peak_gib]
    whole = [peak for peak in peaks if len(peak) % stages == 0]
    return tuple(
        max(max(peak[rank * len(peak) // stages : (rank + 1) * len(peak) // stages]) for peak in whole)
        for rank in range(stages if whole else 0)
    )


def _traced(trial: Trial, step_s: float | None) -> tuple[RankParts, ...]:
    """Returns the parts of every traced rank.

    On CPU ranks, which the profiler slows, they are scaled to the measured step.
    """
    if trial.analysis is None or step_s is None:
        return ()
    times = {time.rank: time for time in trial.analysis.ranks}
    ranks_a_stage = trial.ran.world_size // layout_of(trial.ran).pp
    as_long = step_s if trial.recipe.hardware.is_cpu else None
    return tuple(
        RankParts(
            pipeline_rank=trace.rank // ranks_a_stage, seconds=_seconds(trace, times.get(trace.rank), as_long=as_long)
        )
        for trace in trial.analysis.traces
        if trace.rank is not None and trace.steps
    )


def _seconds(trace: TraceReport, time: RankTime | None, *, as_long: float | None) -> dict[str, float]:
    """Returns seconds by part; time waiting for other ranks is the part `waiting`.

    `as_long` is the step time to scale to on CPU ranks, None on GPUs.
    """
    steps = [step for step in trace.steps if step.name not in trace.warm_up] or trace.steps
    mean = {name: sum(map(read, steps)) / len(steps) / 1e6 for name, read in PARTS.items()}
    for kind, us in time.waiting_by_kind.items() if time else ():
        for name in WAITED.get(kind, ()):
            mean[name] = max(mean[name] - us / 1e6, 0.0)
        mean["waiting"] += us / 1e6 if kind != "pp" else 0.0
    if as_long is None:
        return mean
    length = sum(step.duration_us for step in steps) / len(steps) / 1e6
    return {name: seconds * as_long / length for name, seconds in merge_cpu_parts(mean).items()}


def merge_cpu_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merges parts that the trace of a CPU rank cannot distinguish.

    Forward is classified by profiler range, backward by operator alone: GEMMs and attention are one part, and
    permutation counts as memory-bound work.
    """
    zero = parts["gemm"] * 0.0
    products = parts["gemm"] + parts["grouped"] + parts["attention"]
    merged = {"gemm": products, "memory_bound": parts["memory_bound"] + parts["permute"]}
    return {**parts, "grouped": zero, "attention": zero, "permute": zero, **merged}


def _classes(*names: str) -> Callable[[Partition], float]:
    return lambda step: sum(step.compute_by_class.get(name, 0.0) for name in names)


def _memory_bound(step: Partition) -> float:
    classified = ("gemm", "grouped_gemm", "attention", "router", "quantise", "recompute", "optimizer")
    return step.compute_us - _classes(*classified)(step)


def _garbage(step: Partition) -> float:
    return step.host_by_activity.get(GARBAGE, 0.0)


# part -> microseconds of it in a traced step
PARTS: dict[str, Callable[[Partition], float]] = {
    "gemm": _classes("gemm"),
    "grouped": _classes("grouped_gemm"),
    "attention": _classes("attention"),
    "permute": _classes("router"),
    "quantize": _classes("quantise"),
    "memory_bound": _memory_bound,
    "recompute": _classes("recompute"),
    "optimizer": _classes("optimizer"),
    "ep": busy(*EP_KINDS),
    "ep_exposed": exposed(*EP_KINDS),
    "tp_exposed": exposed("tp"),
    "cp_exposed": exposed("cp"),
    "dp_exposed": exposed("dp"),
    "host": lambda step: step.idle_by_cause.host_us - _garbage(step),
    "gc": _garbage,
    "waiting": lambda step: exposed("pp")(step) + step.idle_by_cause.bubble_us,
}
# kind of communication -> the parts that waiting inside it is taken from
WAITED = {
    **dict.fromkeys(EP_KINDS, ("ep", "ep_exposed")),
    "tp": ("tp_exposed",),
    "cp": ("cp_exposed",),
    "dp": ("dp_exposed",),
}
