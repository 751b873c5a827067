"""The JSON document of `gap`: the levels of the waterfall, the gaps between them, and the causes with advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from autotune.gap.advice import Advice, advice_of
from autotune.gap.comparing import Compared
from autotune.looks.segments import slowest
from policies.trial import Z_90
from trainer.estimate.gap.losses import losses
from trainer.estimate.gap.published import Nearest
from trainer.estimate.gap.waterfall import Gap, Interval, Level
from trainer.legality import broken_rules
from trainer.model.flops import model_flops_per_token
from trainer.recipe import Recipe

Split = Literal["parts", "estimate", "parts without a recipe", "nothing measured"]


class Time(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds with their 90 % interval."""

    ms: float
    low_ms: float
    high_ms: float


class LevelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A level of the waterfall: measured, own_estimate, reference, plan, peak, or compute (for a trace without a
    recipe). Rates are null without a recipe."""

    name: str
    time: Time
    tokens_per_s_per_gpu: float | None
    model_tflops_per_gpu: float | None


class GapEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A gap between levels; a positive time is lost.

    `changes`: knob → [here, there]; `alone`: time that the change saves by itself; `partner`: the change with which it
    interacts, by `together_ms`.
    """

    kind: str
    name: str
    time: Time
    seen_ms: float | None = None
    expected_ms: float | None = None
    changes: dict[str, tuple[Any, Any]] = {}
    alone: Time | None = None
    partner: str | None = None
    together_ms: float | None = None


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of lost time; causes are sorted, largest first.

    `share`: of the first level; `sure`: its interval is above 0; `parts_ms`: traced parts that it explains.
    """

    name: str
    kind: str
    time: Time
    share: float
    sure: bool
    changes: dict[str, tuple[Any, Any]]
    parts_ms: dict[str, float]
    advice: Advice


class PublishedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The published run: the nearest one, or that of --against (`named`).

    `differs`: [here, there] of the settings that make it incomparable.
    """

    row: str
    release: str
    source: str
    trusted: bool
    named: bool
    model: str
    gpu: str
    gpus: int
    precision: str
    seq_length: int
    global_batch_size: int
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    differs: dict[str, tuple[Any, Any]]


class UnpricedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that differs but has no effect on any estimate.

    `published_gain`: fraction of throughput, and its interval.
    """

    name: str
    values: tuple[Any, Any]
    published_gain: tuple[float, float, float] | None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The failure that ended a run early, with its evidence."""

    kind: str
    evidence: str


class GapDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `gap --json`.

    `gaps` add up to the first level minus the reference; without one minus plan's first choice, for a trace without a
    recipe minus its compute. `scale`: factor on all estimates, measured over estimated step time of the reference (on
    CPUs without a reference, of your own run).
    """

    schema: int = 1
    source: str
    name: str
    against: str | None
    split: Split
    rank: int | None
    both_traced: bool
    steps_marked: bool
    gpu: str | None
    simulated: bool
    iterations: int | None
    warm_up_left_out: bool
    software: str | None
    scale: float
    levels: list[LevelEntry]
    gaps: list[GapEntry]
    causes: list[Cause]
    published: PublishedRun | None
    not_priced: list[UnpricedEntry]
    unsaid: list[str]
    broken: list[str]  # ids of the rules that the recipe breaks
    attainable: str | None = None
    ended: Ended | None = None  # null unless the run failed; its steps before that are compared


def document_of(found: Compared, *, software: str | None, file: str | None = None) -> GapDocument:
    """Returns the document of a comparison; `file`: where the attainable recipe was written."""
    waterfall, side = found.waterfall, found.side
    assert waterfall is not None
    first_s = waterfall.levels[0].time.s
    return GapDocument(
        source=side.source,
        name=side.name,
        against=found.against.name if found.against else None,
        split=_split(found),
        rank=found.rank,
        simulated=side.simulated or bool(found.against and found.against.simulated),
        both_traced=found.rank is not None and found.against is not None and found.against.analysis is not None,
        steps_marked=_marked(found),
        gpu=found.own.cluster.gpu_name if found.own else None,
        iterations=side.steps.count if side.steps else None,
        warm_up_left_out=side.steps.warm if side.steps else False,
        software=software,
        scale=waterfall.scale,
        levels=[_level(level, found.own) for level in waterfall.levels],
        gaps=[_gap(gap) for gap in waterfall.gaps],
        causes=[
            Cause(
                name=loss.name,
                kind=loss.kind,
                time=_time(loss.time),
                share=loss.time.s / first_s,
                sure=loss.time.s > Z_90 * loss.time.deviation_s,
                changes=dict(_changes(loss.gaps)),
                parts_ms=_parts(loss.gaps),
                advice=advice_of(loss, found),
            )
            for loss in losses(waterfall)
        ],
        published=_published(found.nearest),
        not_priced=[
            UnpricedEntry(
                name=each.name,
                values=each.values,
                published_gain=(each.effect.gain, each.effect.low, each.effect.high) if each.effect else None,
            )
            for each in found.unpriced
        ],
        unsaid=list(side.unsaid),
        broken=sorted(broken_rules(found.own)) if found.own else [],
        attainable=file,
        ended=Ended(kind=side.ended.kind, evidence=side.ended.evidence) if side.ended else None,
    )


def _split(found: Compared) -> Split:
    if found.own is None:
        return "parts without a recipe"
    if found.side.steps is None:
        return "nothing measured"
    return "parts" if found.rank is not None else "estimate"


def _marked(found: Compared) -> bool:
    """Returns whether the measured time is a step; False for a whole trace without step markers."""
    trace = slowest(found.side.analysis) if found.side.analysis is not None else None
    return found.side.source != "trace" or trace is None or bool(trace.steps)


def _level(level: Level, own: Recipe | None) -> LevelEntry:
    rate = None if own is None or not level.time.s else own.training.tokens_per_step / own.world_size / level.time.s
    flops = None if own is None else model_flops_per_token(own.architecture, own.training.seq_length)
    return LevelEntry(
        name=level.name,
        time=_time(level.time),
        tokens_per_s_per_gpu=rate,
        model_tflops_per_gpu=None if rate is None or flops is None else rate * flops / 1e12,
    )


def _gap(gap: Gap) -> GapEntry:
    return GapEntry(
        kind=gap.kind,
        name=gap.name,
        time=_time(gap.time),
        seen_ms=_ms(gap.seen_s),
        expected_ms=_ms(gap.expected_s),
        changes=dict(gap.knobs),
        alone=None if gap.alone is None else _time(gap.alone),
        partner=None if gap.helps is None else gap.helps[0],
        together_ms=None if gap.helps is None else _ms(gap.helps[1]),
    )


def _changes(gaps: tuple[Gap, ...]) -> Mapping[str, tuple[Any, Any]]:
    return {name: values for gap in gaps for name, values in gap.knobs.items()}


def _parts(gaps: tuple[Gap, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for gap in gaps:
        if gap.seen_s is not None:
            found[gap.name] = found.get(gap.name, 0.0) + 1e3 * gap.time.s
    return found


def _time(time: Interval) -> Time:
    half_s = Z_90 * time.deviation_s
    return Time(ms=1e3 * time.s, low_ms=1e3 * (time.s - half_s), high_ms=1e3 * (time.s + half_s))


def _ms(s: float | None) -> float | None:
    return None if s is None else 1e3 * s


def _published(nearest: Nearest | None) -> PublishedRun | None:
    if nearest is None:
        return None
    run, recipe = nearest.run, nearest.run.recipe
    return PublishedRun(
        row=run.row,
        release=run.release,
        source=run.source,
        trusted=run.trusted,
        named=nearest.named,
        model=run.model,
        gpu=recipe.cluster.gpu_name,
        gpus=recipe.world_size,
        precision=recipe.training.precision,
        seq_length=recipe.training.seq_length,
        global_batch_size=recipe.training.global_batch_size,
        tokens_per_s_per_gpu=run.tokens_per_s_per_gpu,
        model_tflops_per_gpu=run.model_tflops_per_gpu,
        differs=dict(nearest.differs),
    )
