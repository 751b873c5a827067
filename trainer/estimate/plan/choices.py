"""The result of a search: ranked choices with their reasons, and why a familiar layout is not among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.estimate.candidates import Flags, Integers, one
from trainer.estimate.learned import LearnedCluster
from trainer.estimate.memory.estimate import memory_of
from trainer.estimate.plan.familiar import Familiar, familiar_to
from trainer.estimate.plan.legality import rules_of_plan
from trainer.estimate.plan.scored import Scored
from trainer.estimate.plan.search import Search, of_sizes
from trainer.estimate.plan.stages import balanced_layouts
from trainer.estimate.time.bound import ratio_spread, unproven_offloads
from trainer.estimate.time.estimate import TimeTable, time_of
from trainer.estimate.time.parts import STEP_PARTS
from trainer.estimate.time.work import fuses_experts
from trainer.legality import broken_rules
from trainer.measured.software import latest, releases
from trainer.recipe.knobs import KNOBS
from trainer.recipe.layout import Layout, sizes_of
from trainer.recipe.rules import RULES, FindingKind
from trainer.recipe.rules.examples import FUSED
from trainer.recipe.rules.nearest import CP, EP, PP, TP
from trainer.recipe.rules.rule import Effect, Finding
from trainer.recipe.schema import Recipe

AXES = {"TP": TP, "PP": PP, "CP": CP, "EP": EP}
MAX_MARKS = 300  # most ranked layouts in the chart of throughput over memory; half as many more that do not fit
MAX_LIMIT_RATIO = 1.5  # times the memory limit: layouts that need more are not shown
MAX_NAMED_PARTS = 2  # most parts of a step that a reason names, one more for the first choice
NOTABLE = 0.005  # fraction of a step: smaller differences are not a reason
# rules by which Megatron-Bridge's scripts set environment variables
_ENVIRONMENT = tuple(
    rule
    for rule in RULES
    if rule.kind is FindingKind.AUTOSET and all(KNOBS[name].acts == "environment" for name in rule.knobs)
)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One legal recipe and its estimates. GiB of the hottest rank; `fits` is by the upper bound."""

    recipe: Recipe
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    step_s: float
    spread: float  # relative half width of the interval
    peak_gib: float
    upper_gib: float
    outside_gib: float  # GPU memory outside the allocator
    fits: bool
    pp_rank: int  # the pipeline rank that needs the most memory
    time_by_part: dict[str, float]  # seconds by STEP_PARTS; they add up to the step
    memory_by_part: dict[str, float]
    because: str

    @property
    def needs_gib(self) -> float:
        """Returns the GiB that must be below the limit: the upper bound plus memory outside the allocator."""
        return self.upper_gib + self.outside_gib

    @property
    def layout(self) -> Layout:
        return Layout(self.recipe)


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A layout that a user might expect, and why it is not shown."""

    layout: str
    because: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """A layout with its best settings, as one point of throughput over memory."""

    recipe: Recipe
    tokens_per_s_per_gpu: float
    needs_gib: float
    fits: bool


def cloud(found: Search) -> list[Point]:
    """Returns the first MAX_MARKS layouts of the ranking and, at most half as many, the fastest of those that do not
    fit but need at most MAX_LIMIT_RATIO times the limit."""
    finals, outlined = found.finals, found.outlined
    limit = found.learned.limit_gib(found.base) or np.inf
    over = np.flatnonzero(~outlined.fits & (outlined.figures.needs_gib <= MAX_LIMIT_RATIO * limit))
    over = over[np.argsort(-outlined.figures.tokens_per_s_per_gpu[over], kind="stable")]
    _, first = np.unique(outlined.layout[over], return_index=True)
    picked = [(finals, row) for row in found.ranking[:MAX_MARKS]] + [
        (outlined, row) for row in over[np.sort(first)][: MAX_MARKS // 2]
    ]
    return [
        Point(
            recipe=scored.candidates.recipe(int(row)),
            tokens_per_s_per_gpu=float(scored.figures.tokens_per_s_per_gpu[row]),
            needs_gib=float(scored.figures.needs_gib[row]),
            fits=bool(scored.fits[row]),
        )
        for scored, row in picked
    ]


def choices(found: Search, top: int) -> list[Choice]:
    """Returns the `top` best layouts with their best settings, each checked by the rules as a recipe."""
    recipes: dict[int, Recipe] = {}
    for row in found.ranking:
        recipe = as_counted(written_out(found.finals.candidates.recipe(int(row))))
        if not broken(recipe, found.unavoidable):
            recipes[int(row)] = recipe
        if len(recipes) == top:
            break
    return _choices(found.finals, recipes, found.learned)


def written_out(recipe: Recipe) -> Recipe:
    """Returns the recipe with the environment variables that Megatron-Bridge's own scripts would set for it."""
    for rule in _ENVIRONMENT:
        if finding := rule.finding(recipe):
            recipe = recipe.replace(finding.suggestion)
    return recipe


def as_counted(recipe: Recipe) -> Recipe:
    """Returns the recipe with the settings of the newest releases that its estimate takes for granted, where they are
    legal, free to move and known to the release that its trainer names: experts as one fused kernel, and their
    activations in pages where the whole iteration is captured at a capacity of the ranks."""
    rows = one(recipe)
    paged = rows.whole_iteration & (recipe.knob("moe_expert_rank_capacity_factor") is not None)
    fused = fuses_experts(rows, releases()[latest()])
    wanted = ((FUSED, fused), ({"moe_paged_stash": True}, paged))
    for settings, counted in wanted:
        (name, *_) = settings
        if counted.all() and not recipe.knob(name) and settings.keys().isdisjoint(recipe.tune.freeze):
            changed = recipe.replace(settings)
            recipe = changed if broken_rules(changed) <= broken_rules(recipe) else recipe
    return recipe


def broken(recipe: Recipe, unavoidable: frozenset[str] = frozenset()) -> list[Finding]:
    """Returns the findings that exclude a recipe from the choices, except those of the rules in `unavoidable`."""
    rules = (rule for rule in rules_of_plan(recipe) if rule.id not in unavoidable)
    return [finding for rule in rules if (finding := rule.finding(recipe))]


def _choices(scored: Scored, recipes: Mapping[int, Recipe], learned: LearnedCluster) -> list[Choice]:
    if not recipes:
        return []
    table = scored.candidates.take(np.array(list(recipes)))
    time = time_of(table, constants=learned.constants, ends=learned.ends)
    memory = memory_of(table, learned=learned.memory)
    parts = [_step_parts(time, row) for row in range(table.count)]
    limit = learned.limit_gib(table.base)
    return [
        Choice(
            recipe=recipe,
            tokens_per_s_per_gpu=float(time.tokens_per_s_per_gpu[i]),
            model_tflops_per_gpu=float(time.model_tflops_per_gpu[i]),
            step_s=float(time.step_s[i]),
            spread=float(time.spread[i]),
            peak_gib=float(memory.peak_gib[i]),
            upper_gib=float(memory.upper_gib[i]),
            outside_gib=float(memory.outside_gib[i]),
            fits=bool(scored.fits[row]),
            pp_rank=int(memory.hottest[i]),
            time_by_part=parts[i],
            memory_by_part={name: float(gib[i, memory.hottest[i]]) for name, gib in memory.by_part.items()},
            because=_reason(parts[i], parts[0] if i else None)
            if scored.fits[row]
            else f"needs {memory.upper_gib[i] + memory.outside_gib[i]:.1f} GiB of {limit:g}",
        )
        for i, (row, recipe) in enumerate(recipes.items())
    ]


def _step_parts(time: TimeTable, row: int) -> dict[str, float]:
    return {name: float(time.by_part[name][row]) for name in STEP_PARTS}


def _reason(parts: Mapping[str, float], first: Mapping[str, float] | None) -> str:
    """Describes the largest parts of the step; for later choices, the parts that are slower than in the first
    choice."""
    step = sum((first or parts).values())
    if first is None:
        largest = sorted(parts, key=lambda name: -parts[name])[: MAX_NAMED_PARTS + 1]
        return ", ".join(f"{STEP_PARTS[name]} {100 * parts[name] / step:.0f} %" for name in largest)
    slower = {name: (parts[name] - first[name]) / step for name in parts}
    largest = sorted(slower, key=lambda name: -slower[name])[:MAX_NAMED_PARTS]
    named = [f"{STEP_PARTS[name]} {100 * slower[name]:+.1f} %" for name in largest if slower[name] > NOTABLE]
    return ", ".join(named) or "as fast within the estimate's accuracy"


def missing(found: Search, shown: list[Choice]) -> list[Missing]:
    """Returns why these are not shown: the fastest recipe whose gain is unsure, the recipe's own layout, published
    starting points of the model, sizes that no choice has."""
    named = [Familiar.own(found.base), *familiar_to(found.base)]
    listed = {sizes_of(choice.recipe) for choice in shown}
    layouts = [
        Missing(
            layout=f"{one.words} ({one.source})", because=_why(found, of_sizes(found.layouts, one.sizes), one.sizes)
        )
        for one in named
        if one.sizes not in listed
    ]
    return [*_unsure(found), *layouts, *_axes(found, shown)]


def _unsure(found: Search) -> Iterator[Missing]:
    """Yields the fastest recipe if it is left out because its gain, from offload to the host, is not sure."""
    finals = found.finals
    row = np.where(finals.fits, finals.figures.tokens_per_s_per_gpu, 0.0).argmax()
    if not finals.unsure[row] or finals.throughput_ratio[row] < 1 + NOTABLE:
        return
    recipe = finals.candidates.recipe(int(row))
    ways = [name for name, flags in unproven_offloads(one(recipe)).items() if flags.all()]
    gain, width = finals.throughput_ratio[row], 1 + ratio_spread(finals.unproven[[row]])[0]
    yield Missing(
        layout=f"{' and '.join(ways)} with {Familiar.own(recipe).words}",
        because=f"predicted {100 * (gain - 1):.0f} % faster, which is not sure: 90 % interval "
        f"{100 * (gain / width - 1):+.0f} to {100 * (gain * width - 1):+.0f} %, no published run has it",
    )


def _axes(found: Search, shown: list[Choice]) -> Iterator[Missing]:
    """Yields values of one size that were searched and that no choice has."""
    for word, name in AXES.items():
        column = found.layouts.columns.get(name)
        for value in sorted(column.choices) if column else ():
            if value not in {choice.recipe.knob(name) for choice in shown}:
                yield Missing(layout=f"{word}{value}", because=_why(found, found.layouts.among(name, value), None))


def _why(found: Search, places: Flags, sizes: tuple[int, ...] | None) -> str:
    """Returns why none of these layouts (bool[L]) is shown: not searched, illegal, too large with any recompute, or
    without offload to the host, or slower."""
    if not places.any():
        return _unsearched(found, sizes)
    if not (places & found.legal).any():
        return _illegal(found, places)
    limit = found.learned.limit_gib(found.base)
    outlined = np.flatnonzero(places[found.outlined.layout])
    if not len(outlined):
        return "no recompute setting is legal with it"
    fitting = outlined[found.outlined.fits[outlined]]
    if not len(fitting):
        return f"needs {found.outlined.figures.needs_gib[outlined].min():.1f} GiB of {limit:g} at least"
    plain = fitting[found.outlined.unproven[fitting] == 0]
    if not len(plain):
        return "fits only with offload to the host"
    only_full = found.outlined.candidates.take(plain).among("recompute_granularity", "full").all()
    return ("fits only with full recompute; " if only_full else "") + _slower(found, places, plain)


def _slower(found: Search, places: Flags, fitting: Integers) -> str:
    values = found.learned.constants
    first = time_of(found.finals.candidates.take(found.ranking[:1]), constants=values)
    finals = np.flatnonzero(places[found.finals.layout] & found.finals.eligible)
    scored, rows = (found.finals, finals) if len(finals) else (found.outlined, fitting)
    best = rows[[scored.figures.tokens_per_s_per_gpu[rows].argmax()]]
    rate = scored.figures.tokens_per_s_per_gpu[best[0]] / first.tokens_per_s_per_gpu[0] - 1
    if rate > -NOTABLE:
        return "as fast as the first within the estimate's accuracy"
    parts = _step_parts(time_of(scored.candidates.take(best), constants=values), 0)
    return f"{-100 * rate:.0f} % slower: {_reason(parts, _step_parts(first, 0))}"


def _illegal(found: Search, places: Flags) -> str:
    """Returns the rule that forbids the layout that violates fewest rules."""
    broken = np.sum([verdict.astype(int) for verdict in found.broken.values()], axis=0)
    rows = np.flatnonzero(places)
    return _first_broken(found.layouts.recipe(int(rows[broken[rows].argmin()])), found.unavoidable)


def _unsearched(found: Search, sizes: tuple[int, ...] | None) -> str:
    if sizes is None:
        return "not searched"
    cannot = _first_broken(_with_sizes(found.base, sizes), found.unavoidable)
    return cannot or "not searched: it moves what is frozen, or cuts sequence or layers finer than is worth it"


def _with_sizes(base: Recipe, sizes: tuple[int, ...]) -> Recipe:
    tp, pp, vpp, cp, ep, etp = sizes
    model = base.architecture
    even = model.num_layers % (pp * vpp) == 0
    text = None if even else next(iter(balanced_layouts(model, base.training.seq_length, pp=pp, vpp=vpp)), None)
    changes: dict[str, Any] = {TP: tp, PP: pp, CP: cp, EP: ep, "expert_tensor_parallel_size": etp}
    changes |= {"virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None, "overlap_p2p_comm": vpp > 1}
    return base.replace(changes | {"pipeline_model_parallel_layout": text, "sequence_parallel": tp > 1})


def _first_broken(recipe: Recipe, unavoidable: frozenset[str]) -> str:
    findings = broken(recipe, unavoidable)
    if not findings:
        return ""
    first = findings[0]
    return f"{'known to fail' if first.effect is Effect.FAILS else 'illegal'}: {first.message} [{first.rule}]"
