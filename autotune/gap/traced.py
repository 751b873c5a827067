"""Divides a traced step into parts, with the expected time of each if the recipe is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analyzers.diagnosis import Analysis, Partition, TraceReport
from autotune.looks.segments import PIPELINE, counted_steps, mean_of, mean_segments, mean_us, slowest
from policies.situation import EP_KINDS
from policies.surrogate.evidence import PARTS as READS
from policies.surrogate.evidence import WAITED
from policies.surrogate.step_parts import PART_DEVIATION, PART_DEVIATIONS, expected_parts
from trainer.estimate.candidates import Floats
from trainer.estimate.gap.costs import tokens_per_gpu
from trainer.estimate.gap.parts import EXPERTS_WAIT, OTHER, Traced
from trainer.estimate.gap.waterfall import Change, Gap, Interval, Kind, Level, LevelName, Reference, Waterfall
from trainer.estimate.time.constants import Constants
from trainer.recipe import Recipe

COMPUTE = "compute"


def traced_parts(
    analysis: Analysis, recipe: Recipe, changes: Sequence[Change], *, release: str | None, constants: Constants
) -> Traced | None:
    """Returns measured and expected parts of the slowest rank's average step; None on CPUs, without marked steps, or if
    the rank is unknown."""
    trace = slowest(analysis)
    if trace is None or not trace.steps or trace.rank is None or recipe.hardware.is_cpu:
        return None
    stage = trace.rank * recipe.parallelism.pipeline_model_parallel_size // recipe.world_size
    expected = _expected(recipe, stage, release, constants)
    even = bool(recipe.knob("moe_router_force_load_balancing"))
    return Traced(
        seen=_with_offload(recipe, seen_parts(trace, even=even)),
        expected=expected,
        deviations=PART_DEVIATIONS,
        usual_deviation=PART_DEVIATION,
        rank=trace.rank,
        moved={change.name: _moved(recipe, change, expected, stage, release) for change in changes},
    )


def with_reference(traced: Traced, analysis: Analysis, own: Recipe, reference: Reference) -> Traced:
    """Returns the parts of a traced run with `reference_excess_s`: the measured minus the expected seconds of each part
    of its traced reference, scaled to the tokens of `own`; unchanged if the reference has no parts."""
    there = traced_parts(analysis, reference.recipe, (), release=reference.release, constants={})
    if there is None:
        return traced
    tokens = tokens_per_gpu(own) / tokens_per_gpu(reference.recipe)
    expected = {part: float(found[0]) for part, found in there.expected.items()}
    off = tokens_per_gpu(reference.recipe) / reference.tokens_per_s_per_gpu / sum(expected.values())
    excess_s = {part: tokens * (seen - off * expected.get(part, 0.0)) for part, seen in there.seen.items()}
    return replace(traced, reference_excess_s=excess_s)


def _expected(recipe: Recipe, stage: int, release: str | None, constants: Constants) -> dict[str, Floats]:
    """Returns the expected parts; waiting for the rank with the most tokens is a part apart from the EP transfer."""
    found = expected_parts(recipe, stage, release=release, constants=constants)
    found["ep_exposed"] = found["ep_exposed"] - found[EXPERTS_WAIT]
    return _with_offload(recipe, {name: part for name, part in found.items() if name != "ep"})


def _with_offload(recipe: Recipe, parts: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts with the time of an optimizer on the host added to `host`: a trace shows it as either."""
    if not recipe.knob("optimizer_cpu_offload"):
        return parts
    return {**parts, "host": parts["host"] + parts["optimizer"], "optimizer": 0.0 * parts["optimizer"]}


def _moved(
    recipe: Recipe, change: Change, expected: Mapping[str, Floats], stage: int, release: str | None
) -> dict[str, float]:
    """Returns the seconds that a change saves in each part, for the same number of tokens."""
    after = recipe.replace(change.target)
    stage = stage * after.parallelism.pipeline_model_parallel_size // recipe.parallelism.pipeline_model_parallel_size
    tokens = recipe.training.tokens_per_step / after.training.tokens_per_step
    there = _expected(after, stage, release, {})
    return {name: float(expected[name][0] - tokens * part[0]) for name, part in there.items()}


def seen_parts(trace: TraceReport, *, even: bool) -> dict[str, float]:
    """Returns measured seconds by part; they add up to the average step.

    `even`: the router is forced to balance, so that only waiting which the traces prove counts as waiting for late
    ranks.
    """
    steps = counted_steps(trace)
    mean = {name: sum(map(read, steps)) / len(steps) / 1e6 for name, read in READS.items() if name != "ep"}
    mean[OTHER] = mean_us(steps) / 1e6 - sum(mean.values())
    for kind, us in mean_of(steps, lambda step: _waits(step, even)).items():
        if kind == PIPELINE:  # this part is waiting already
            continue
        part = next((name for name in WAITED.get(kind, ()) if name != "ep"), OTHER)
        moved = min(us / 1e6, mean[part])
        mean[part] -= moved
        into = EXPERTS_WAIT if kind in EP_KINDS else "waiting"
        mean[into] = mean.get(into, 0.0) + moved
    return mean


def _waits(step: Partition, even: bool) -> Mapping[str, float]:
    """Returns the time spent in communication waiting for late ranks, µs by kind.

    With an uneven load of experts, EP exchanges also count time that may be waiting: beyond the shortest exchange of
    their kind.
    """
    perhaps = {} if even else {kind: us for kind, us in step.may_wait_by_kind.items() if kind in EP_KINDS}
    kinds = dict.fromkeys((*step.waiting_by_kind, *perhaps))
    return {kind: step.waiting_by_kind.get(kind, 0.0) + perhaps.get(kind, 0.0) for kind in kinds}


def waterfall_of_trace(analysis: Analysis) -> Waterfall | None:
    """Returns the waterfall of a trace without a recipe, part by part from its step down to its compute; None without a
    trace."""
    trace = slowest(analysis)
    if trace is None:
        return None
    segments = {segment.kind.key: segment.us / 1e6 for segment in mean_segments(counted_steps(trace))}
    whole = mean_us(counted_steps(trace)) / 1e6
    return Waterfall(
        levels=(_level(LevelName.MEASURED, whole), _level(LevelName.COMPUTE, segments.pop(COMPUTE, 0.0))),
        gaps=tuple(Gap(kind=Kind.PART, name=name, time=Interval(s=s), seen_s=s) for name, s in segments.items()),
        scale=1.0,
    )


def waterfall_between(one: Analysis, other: Analysis) -> Waterfall | None:
    """Returns the waterfall between two traces without recipes, by part; None if one is missing."""
    sides = [slowest(one), slowest(other)]
    if None in sides:
        return None
    steps = [counted_steps(trace) for trace in sides if trace is not None]
    here, there = ({each.kind.key: each.us / 1e6 for each in mean_segments(of)} for of in steps)
    gaps = (
        Gap(
            kind=Kind.PART,
            name=name,
            time=Interval(s=here.get(name, 0.0) - there.get(name, 0.0)),
            seen_s=here.get(name, 0.0),
            expected_s=there.get(name, 0.0),
        )
        for name in dict.fromkeys((*here, *there))
    )
    levels = zip((LevelName.MEASURED, LevelName.REFERENCE), steps, strict=True)
    return Waterfall(levels=tuple(_level(name, mean_us(of) / 1e6) for name, of in levels), gaps=tuple(gaps), scale=1.0)


def _level(name: LevelName, s: float) -> Level:
    return Level(name=name, time=Interval(s=s))
