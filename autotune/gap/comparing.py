"""Compares a run with a published one, with another run of the user, or with `plan`'s first choice, as a waterfall.

The reference's settings are compared on the user's cluster: as the nearest recipe that is legal there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.gap.inputs import Side
from autotune.gap.probed import probed_in
from autotune.gap.traced import traced_parts, waterfall_between, waterfall_of_trace, with_reference
from policies.candidates.effects import Effect, effects
from policies.constants import constant
from policies.surrogate.time import constants_by_factor
from policies.trial import Z_90
from policies.tuner.decomposition import members
from trainer.errors import refused
from trainer.estimate.candidates import SPLIT, one
from trainer.estimate.gap.costs import Costs
from trainer.estimate.gap.published import Nearest, compared_with, nearest_published, published_run
from trainer.estimate.gap.waterfall import (
    WORK,
    Change,
    Kind,
    Level,
    Measured,
    Probed,
    Question,
    Reference,
    Waterfall,
    waterfall,
)
from trainer.estimate.plan.choices import choices
from trainer.estimate.plan.search import search
from trainer.estimate.time.bound import spread
from trainer.legality import nearest_legal
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

PUBLISHED = "published"
RESIDUAL, RESIDUAL_CPU = constant("residual_deviation_gpu"), constant("residual_deviation_cpu")
AFFINITY = "cpu_affinity"
NO_EFFECT = 1e-6  # relative change of the step time
SEQUENCE_AND_BATCH, PIPELINE = "sequence_and_batch", "pipeline"


@dataclass(frozen=True, kw_only=True)
class UnpricedSetting:
    """A setting that differs but has no effect on any estimate; `effect` is the published one, None if there is
    none."""

    name: str
    values: tuple[Any, Any]
    effect: Effect | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A comparison.

    `own`: the user's recipe, completed where its source is silent; `nearest`: the published run; `against`: another run
    of the user. Without a recipe only `waterfall` is known.
    """

    side: Side
    waterfall: Waterfall | None
    own: Recipe | None = None
    nearest: Nearest | None = None
    against: Side | None = None
    unpriced: tuple[UnpricedSetting, ...] = ()
    rank: int | None = None  # rank whose traced parts divide the gap

    @property
    def levels(self) -> tuple[Level, ...]:
        return self.waterfall.levels if self.waterfall is not None else ()

    @property
    def trace(self) -> Path | None:
        return self.side.trace


def first_choice(own: Recipe) -> Recipe | None:
    """Returns `plan`'s first choice; None if it does not fit."""
    found = choices(search(own), 1)
    return found[0].recipe if found and found[0].fits else None


def compared(
    side: Side,
    *,
    named: str | None,
    other: Side | None,
    release: str | None,
    plan: Callable[[Recipe], Recipe | None],
) -> Compared:
    """Returns the comparison of `side`: with `other`, another run of the user, or else with the published run `named`
    (None: the nearest). `plan` returns the layout to show as well. Raises BadInputError for runs that are not
    comparable."""
    if side.recipe is None:
        return _by_parts(side, other)
    nearest = _nearest(side.recipe, named) if other is None else None
    reference = _reference(side, other) if other is not None else _published(nearest)
    own = _completed(side, reference)
    release = release or (reference.release if reference else None)
    planned = plan(own)
    target = planned if reference is None else _moved(own, reference.recipe)
    every = [] if target is None else list(_changes(own, target))
    costs = Costs(own=own, constants={})
    changes = [change for change in every if _is_priced(costs, change, own, target or own)]
    measured = _measured(side, other, own, reference, changes, release)
    scaled = own.hardware.is_cpu and reference is None and measured is not None
    question = Question(
        own=own,
        release=release,
        measured=measured,
        reference=reference,
        changes=changes,
        planned=planned,
        constants=constants_by_factor(own.hardware),
        residual=_residual(own, scaled=scaled or reference is not None),
        scaled_to_own=scaled,
        probed=_probed(side, own, measured),
    )
    return Compared(
        side=side,
        waterfall=waterfall(question),
        own=own,
        nearest=nearest,
        against=other,
        unpriced=tuple(_unpriced(own, [change for change in every if change not in changes])),
        rank=measured.traced.rank if measured is not None and measured.traced is not None else None,
    )


def _by_parts(side: Side, other: Side | None) -> Compared:
    """Returns the comparison of traces without recipes."""
    assert side.analysis is not None
    between = other.analysis if other is not None else None
    found = waterfall_of_trace(side.analysis) if between is None else waterfall_between(side.analysis, between)
    return Compared(side=side, waterfall=found, against=other)


def _completed(side: Side, reference: Reference | None) -> Recipe:
    """Returns the recipe with its unknown knobs as in the reference; without a reference, with the ranks of GPUs bound
    to cores if that is unknown."""
    assert side.recipe is not None
    if reference is not None:
        return _as_there(side.recipe, reference.recipe, side.unsaid)
    bound = AFFINITY in side.unsaid and not side.recipe.hardware.is_cpu
    return side.recipe.replace({AFFINITY: "spread"}) if bound else side.recipe


def _measured(
    side: Side,
    other: Side | None,
    own: Recipe,
    reference: Reference | None,
    changes: Sequence[Change],
    release: str | None,
) -> Measured | None:
    """Returns the measured step, divided into parts if it was traced; None if no step was measured.

    Raises BadInputError for a trace that cannot be divided.
    """
    if side.steps is None:
        return None
    traced = None
    if side.analysis is not None:
        constants = constants_by_factor(own.hardware)
        traced = traced_parts(side.analysis, own, changes, release=release, constants=constants)
    if traced is None and side.trace is not None:
        what = "parts of CPU ranks are not compared" if own.hardware.is_cpu else "it marks no step of a known rank"
        raise refused(f"--trace {side.trace}", what, f"see `moe-autotune diagnose {side.trace}`")
    if traced is not None and other is not None and other.analysis is not None and reference is not None:
        traced = with_reference(traced, other.analysis, own, reference)
    return Measured(step_s=side.steps.step_s, deviation=side.steps.deviation, traced=traced)


def _probed(side: Side, own: Recipe, measured: Measured | None) -> Probed | None:
    """Returns the probe of the run's cluster; None if none is named.

    Raises BadInputError if no step was measured, or if the step was traced: its trace shows more than a probe.
    """
    if side.probe is None:
        return None
    if measured is None or measured.traced is not None:
        why = "the traces say more" if measured is not None else "no step was measured"
        raise refused(f"--probe {side.probe}", why, "leave it out: it divides a log that was not traced")
    return probed_in(side.probe, own)


def _residual(own: Recipe, *, scaled: bool) -> float:
    """Returns the relative standard deviation of an estimate; it is smaller if the estimate is scaled to a measured
    step."""
    if not scaled:
        return float(spread(one(own)).max()) / Z_90
    return RESIDUAL_CPU if own.hardware.is_cpu else RESIDUAL


def _nearest(own: Recipe, named: str | None) -> Nearest | None:
    if named is None or named == PUBLISHED:
        return nearest_published(own)
    if own.hardware.is_cpu:
        raise refused("--against", "nothing is published for CPUs", "leave it out, or name another run of yours")
    return compared_with(own, published_run(named))


def _published(nearest: Nearest | None) -> Reference | None:
    if nearest is None or not nearest.comparable:
        return None
    run = nearest.run
    return Reference(recipe=run.recipe, tokens_per_s_per_gpu=run.tokens_per_s_per_gpu, release=run.release)


def _reference(side: Side, other: Side) -> Reference:
    """Returns the other run as the reference.

    Raises BadInputError if it was not measured or differs in model or GPU.
    """
    own = side.recipe
    assert own is not None
    if other.recipe is None or other.steps is None:
        lacks = "no recipe is known of it" if other.recipe is None else "it was not measured"
        raise refused(f"--against {other.name}", lacks, "name a log, a study, or a run folder with its burst.json")
    if other.recipe.architecture != own.architecture or other.recipe.cluster.gpu_name != own.cluster.gpu_name:
        raise refused(
            f"--against {other.name}",
            "it trains another model, or on other GPUs",
            "name a run of the same model and GPU",
        )
    rate = other.recipe.training.tokens_per_step / other.recipe.world_size / other.steps.step_s
    return Reference(recipe=_as_there(other.recipe, own, other.unsaid), tokens_per_s_per_gpu=rate)


def _as_there(own: Recipe, there: Recipe, unsaid: Sequence[str]) -> Recipe:
    """Returns `own` with the knobs in `unsaid` as in `there`."""
    return own.replace({name: there.knob(name) for name in unsaid})


def _moved(own: Recipe, there: Recipe) -> Recipe:
    """Returns the nearest legal recipe on the user's cluster with the settings of `there`; an illegal one if there is
    none."""
    moved = own.replace({name: value for name, (_, value) in own.diff(there).items()})
    return nearest_legal(moved) or moved


def _changes(own: Recipe, target: Recipe) -> Iterator[Change]:
    """Yields the changes between two recipes.

    Knobs that belong together are one change, and so are all that split layers among pipeline ranks.
    """
    differs = own.diff(target)
    split: dict[str, tuple[Any, Any]] = {}
    for member in members(own, target):
        knobs = {name: differs[name] for name in member.knobs if name not in WORK}
        if set(knobs) & set(SPLIT):
            split |= knobs
        elif knobs:
            yield Change(name=member.name, knobs=knobs)
    if split:
        yield Change(name=PIPELINE, knobs=split)
    if work := {name: differs[name] for name in WORK if name in differs}:
        yield Change(name=SEQUENCE_AND_BATCH, knobs=work)


def _is_priced(costs: Costs, change: Change, own: Recipe, target: Recipe) -> bool:
    """Returns whether the change alters an estimate: that of `own` with it, or that of `target` without it."""
    back = target.replace({name: here for name, (here, _) in change.knobs.items()})
    pairs = ((own, own.replace(change.target)), (target, back))
    return any(_relative(costs, *pair) > NO_EFFECT for pair in pairs)


def _relative(costs: Costs, one_recipe: Recipe, other: Recipe) -> float:
    here, there = (float(costs.of(each, release=None)[0]) for each in (one_recipe, other))
    return abs(here / there - 1)


def _unpriced(own: Recipe, changes: Sequence[Change]) -> Iterator[UnpricedSetting]:
    for change in changes:
        for name, values in change.knobs.items():
            known = effects().get(name)
            applies = known is not None and known.precision in (None, own.training.precision)
            gains = applies and known is not None and known.value in (None, values[1])
            yield UnpricedSetting(name=name, values=values, effect=known if gains else None)


def attainable(found: Compared) -> Recipe | None:
    """Returns the nearest legal recipe to the user's with all settings that save time and are training-equivalent; None
    if there are no such settings, or no legal recipe."""
    if found.own is None or found.waterfall is None:
        return None
    changes = {
        name: there
        for gap in found.waterfall.gaps
        if gap.kind is Kind.SETTING and gap.time.s > 0
        for name, (_, there) in gap.knobs.items()
        if KNOBS[name].numerics == "training-equivalent"
    }
    moved = found.own.replace(changes)
    return nearest_legal(moved) if changes else None
