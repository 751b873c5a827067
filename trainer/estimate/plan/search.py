"""Searches the best legal settings of a model on a cluster by estimate, for `moe-autotune plan`.

The search has stages, each over columns. The rules reduce the layouts; the rest is combined with recompute and
estimated with a reference dispatcher; the fastest that fit are combined with dispatchers, overlap and graphs and
estimated as they are. Fits means by the upper bound. What is shown has passed `trainer.recipe.rules.check` itself.

Shapes: N rows of a table; all estimates are [N].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats, Integers, one
from trainer.estimate.learned import TABLES, LearnedCluster
from trainer.estimate.memory.estimate import memory_of
from trainer.estimate.plan.legality import BINDING, broken, rules_of_plan
from trainer.estimate.plan.scored import Figures, Scored, best_first, best_of_each_layout
from trainer.estimate.plan.space import EXCHANGE, crossed, foundation, is_outlined, layouts, settings, with_least_memory
from trainer.estimate.time.estimate import stages_of, tokens_per_s_per_gpu
from trainer.recipe.layout import sizes_of
from trainer.recipe.rules.rule import Rule
from trainer.recipe.schema import Recipe

CHUNK = 8192  # rows estimated at once: temporaries of [CHUNK, P] fit in the cache
FINALISTS = 3000  # rows of the first stages that are combined with the remaining settings
OFFLOADED_FINALISTS = 500  # further such rows, with more offload to the host than others that fit
# rows that do not fit that are tried with every offload to the host, those that need least memory first
PROMISING = 1500


@dataclass(frozen=True, kw_only=True)
class Search:
    """The tables from which a plan is made."""

    base: Recipe  # the recipe with settings that are always worth having
    layouts: Candidates
    broken: dict[str, Flags]  # layouts that violate each rule, before any setting is chosen
    # legal layouts, each with its fastest CP exchange, x recompute, precision and offload, at the reference dispatcher
    outlined: Scored
    finals: Scored  # the best rows of `outlined` and those of the recipe's own layout x every other setting
    unavoidable: frozenset[str]  # rules not applied: every choice violates them, or nothing fits without violating them
    estimated: int
    learned: LearnedCluster = TABLES

    @property
    def legal(self) -> Flags:
        return _none(self.broken, self.layouts.count)

    @cached_property
    def ranking(self) -> Integers:
        """Returns rows of the finals, the best first, one for each layout."""
        return best_of_each_layout(self.finals)


@dataclass(frozen=True, kw_only=True)
class Outline:
    """The result of the first stages: the legal layouts, and the memory and throughput of each with each recompute
    setting."""

    layouts: Candidates
    broken: dict[str, Flags]
    settings: Candidates
    options: Integers  # rows of the settings that no rule forbids by themselves
    mixed: tuple[Rule, ...]  # rules that read both layout and settings
    # rules not applied to the choices: every choice violates them, or nothing fits without violating them
    unavoidable: frozenset[str]
    rules: tuple[Rule, ...]  # the rules that are applied to the choices
    picks: Integers  # [N], index of the settings of each scored row
    scored: Scored


def outline(recipe: Recipe, *, room: float = 1.0, learned: LearnedCluster = TABLES) -> Outline:
    """Runs the first stages.

    Pure. Offload to the host, which slows a step, is searched for every layout only where nothing fits without it, else
    where the memory that it frees may be worth more. What a release is known to fail with comes last.
    """
    kept = rules_of_plan(recipe)
    first = _outline(recipe, room, learned, rules=kept)
    if first.scored.fits.any():
        return with_offload(first, room, learned)
    if recipe.hardware.is_cpu or not can_fit(recipe, room=room, learned=learned):
        return first
    for rules, offload in ((kept, True), (BINDING, False), (BINDING, True)):
        found = _outline(recipe, room, learned, rules=rules, offload=offload)
        if found.scored.fits.any():
            break
    return replace(found, unavoidable=found.unavoidable | {rule.id for rule in kept if rule not in rules})


def can_fit(recipe: Recipe, *, room: float = 1.0, learned: LearnedCluster = TABLES) -> bool:
    """Returns whether any layout fits with the settings that need least memory."""
    return bool(_outline(with_least_memory(recipe), room, learned, rules=BINDING).scored.fits.any())


def _outline(
    recipe: Recipe, room: float, learned: LearnedCluster, *, rules: Sequence[Rule], offload: bool = False
) -> Outline:
    base = foundation(recipe)
    places, choices = layouts(base), settings(base, offload=offload)
    unavoidable, _ = broken(one(base), rules=rules, undecided=frozenset({*places.columns, *choices.columns}))
    rules = [rule for rule in rules if rule.id not in unavoidable]
    verdicts, open_rules = broken(places, rules=rules, undecided=frozenset(choices.columns))
    good = _fastest_exchange(places, np.flatnonzero(_none(verdicts, places.count)), learned)
    possible, mixed = broken(choices, rules=open_rules, undecided=frozenset(places.columns))
    options = np.flatnonzero(_none(possible, choices.count))
    reference = _references(choices, options)
    rows, picks = np.repeat(good, len(reference)), np.tile(reference, len(good))
    scored, picks = _judged(places, choices, (rows, picks), mixed, room, learned)
    return Outline(
        layouts=places,
        broken=verdicts,
        settings=choices,
        options=options,
        mixed=mixed,
        unavoidable=frozenset(unavoidable),
        rules=tuple(rules),
        picks=picks,
        scored=scored,
    )


def with_offload(first: Outline, room: float, learned: LearnedCluster) -> Outline:
    """Returns the outline with rows that fit only by offload to the host, if they are faster than all rows that fit
    without it. Whether they are surely faster is judged with all settings (`Scored.unsure`).

    Offload only costs time, so that only rows that do not fit, but would be faster, can gain.
    """
    places, base, scored = first.layouts, first.layouts.base, first.scored
    best = scored.figures.tokens_per_s_per_gpu[scored.fits].max()
    faster = np.flatnonzero(~scored.fits & (scored.figures.tokens_per_s_per_gpu > best))
    if not faster.size or base.hardware.is_cpu or base.hardware.host_link_gb_s is None:
        return first
    faster = faster[np.argsort(scored.figures.needs_gib[faster], kind="stable")][:PROMISING]
    choices = settings(base, offload=True)
    # number of offload settings: they vary fastest, the recipe's own comes first
    ways = choices.count // first.settings.count
    _, open_rules = broken(places, rules=first.rules, undecided=frozenset(choices.columns))
    possible, mixed = broken(choices, rules=open_rules, undecided=frozenset(places.columns))
    allowed = _none(possible, choices.count)
    picks = (first.picks[faster, None] * ways + np.arange(1, ways)).reshape(-1)
    rows = np.repeat(scored.layout[faster], ways - 1)[allowed[picks]]
    picks = picks[allowed[picks]]
    tried, picks = _judged(places, choices, (rows, picks), mixed, room, learned)
    better = np.flatnonzero(tried.fits & (tried.figures.tokens_per_s_per_gpu > best))
    if not better.size:
        return first
    rows = np.concatenate([scored.layout, tried.layout[better]])
    picks = np.concatenate([first.picks * ways, picks[better]])
    return replace(
        first,
        settings=choices,
        options=np.flatnonzero(allowed),
        mixed=mixed,
        picks=picks,
        scored=Scored(
            candidates=crossed(places, choices, rows, picks),
            figures=Figures.joined([scored.figures, tried.figures.take(better)]),
            fits=np.concatenate([scored.fits, tried.fits[better]]),
            layout=rows,
        ),
    )


def search(recipe: Recipe, *, room: float = 1.0, learned: LearnedCluster = TABLES) -> Search:
    """Runs the whole search.

    Pure: a function of the recipe and the cluster's calibration. Takes seconds for thousands of GPUs. Recipes up to
    `room` times the memory limit count as fitting.
    """
    first = outline(recipe, room=room, learned=learned)
    finals = _finish(first, room, learned)
    return Search(
        base=first.layouts.base,
        layouts=first.layouts,
        broken=first.broken,
        outlined=first.scored,
        finals=finals,
        unavoidable=first.unavoidable,
        estimated=first.scored.candidates.count + finals.candidates.count,
        learned=learned,
    )


def _none(verdicts: dict[str, Flags], count: int) -> Flags:
    """Returns bool[count]: the rows that violate no rule."""
    none = np.ones(count, dtype=bool)
    for verdict in verdicts.values():
        none &= ~verdict
    return none


def _fastest_exchange(places: Candidates, rows: Integers, learned: LearnedCluster) -> Integers:
    """Returns the fastest row of each group of rows that differ only in the exchange between context ranks, and thus
    need the same memory."""
    if not set(EXCHANGE) & places.columns.keys() or not rows.size:
        return rows
    step = _steps(places.take(rows), learned)
    names = [name for name in places.columns if name not in EXCHANGE]
    _, group = np.unique(np.stack([places.columns[name].codes[rows] for name in names]), axis=1, return_inverse=True)
    order = np.lexsort((step, group.reshape(-1)))
    _, first = np.unique(group.reshape(-1)[order], return_index=True)
    chosen: Integers = np.sort(rows[order[first]])
    return chosen


def _steps(candidates: Candidates, learned: LearnedCluster) -> Floats:
    """Returns the seconds per step of every row, [N], a chunk of rows at a time."""
    steps = ((part, stages_of(part, constants=learned.constants).step) for part in _chunks(candidates))
    return np.concatenate([np.broadcast_to(step, part.count) for part, step in steps])


def _references(choices: Candidates, options: Integers) -> Integers:
    """Returns one setting for each combination of recompute, precision and offload: with the last dispatcher, without
    overlap and graphs."""
    wanted = choices.take(options)
    plain = ~wanted.on("overlap_moe_expert_parallel_comm") & wanted.among("cuda_graph_impl", "none")
    plain = np.broadcast_to(plain, wanted.count)
    plain = plain if plain.any() else np.ones(wanted.count, dtype=bool)
    names = [name for name in choices.columns if is_outlined(name) or name == "precision"]
    codes = [wanted.columns[name].codes[plain] for name in names]
    if not codes:
        return options[plain][-1:]
    _, last = np.unique(np.stack(codes)[:, ::-1], axis=1, return_index=True)
    return np.sort(options[plain][::-1][last])


def _finish(first: Outline, room: float, learned: LearnedCluster) -> Scored:
    """Returns the fastest layouts that fit (those with least memory if none does), with and without unproven offload,
    and the recipe's own, combined with all other settings."""
    outlined, choices = first.scored, first.settings
    own = np.flatnonzero(of_sizes(first.layouts, sizes_of(first.layouts.base))[outlined.layout])
    plain, offloaded = np.flatnonzero(outlined.unproven <= 0), np.flatnonzero(outlined.unproven > 0)
    picked = ((plain, FINALISTS), (offloaded, OFFLOADED_FINALISTS))
    best = [rows[best_first(outlined.take(rows))[:most]] for rows, most in picked]
    order = np.unique(np.concatenate([*best, own]))
    recompute = _recompute_keys(outlined.candidates.take(order))
    available = _recompute_keys(choices.take(first.options))
    pairs = [np.flatnonzero(available == key) for key in recompute]
    rows = np.repeat(outlined.layout[order], [len(found) for found in pairs])
    picks = first.options[np.concatenate(pairs)] if pairs else first.options[:0]
    crossing = crossed(first.layouts, choices, rows, picks)
    verdicts, _ = broken(crossing, rules=first.mixed)
    keep = _none(verdicts, crossing.count)
    return _scored(crossing.take(keep), rows[keep], room, learned)


def _judged(
    places: Candidates,
    choices: Candidates,
    pairs: tuple[Integers, Integers],
    rules: Sequence[Rule],
    room: float,
    learned: LearnedCluster,
) -> tuple[Scored, Integers]:
    """Returns the legal pairs (row of the layouts, row of the settings) with their figures, and their settings' rows.

    Only rules that layout, recompute and offload decide are applied: dispatcher, overlap and graphs are those of
    `_references` still.
    """
    rows, picks = pairs
    crossing = crossed(places, choices, rows, picks)
    others = frozenset(name for name in choices.columns if not is_outlined(name))
    verdicts, _ = broken(crossing, rules=rules, undecided=others)
    legal = np.flatnonzero(_none(verdicts, crossing.count))
    return _scored(crossing.take(legal), rows[legal], room, learned), picks[legal]


def _recompute_keys(candidates: Candidates) -> Integers:
    """Returns a key for each row, [N]: equal for equal recompute, offload and precision."""
    key = np.zeros(candidates.count, dtype=np.int64)
    for name, column in sorted(candidates.columns.items()):
        if is_outlined(name) or name == "precision":
            key = key * len(column.choices) + column.codes
    return key


def _scored(candidates: Candidates, layout: Integers, room: float, learned: LearnedCluster) -> Scored:
    figures = estimated(candidates, learned)
    limit = learned.limit_gib(candidates.base)
    fits = np.ones(candidates.count, dtype=bool) if limit is None else figures.needs_gib <= room * limit
    return Scored(candidates=candidates, figures=figures, fits=fits, layout=layout)


def estimated(candidates: Candidates, learned: LearnedCluster = TABLES) -> Figures:
    """Returns memory and throughput of every row, a chunk of rows at a time."""
    return Figures.joined(list(_figures(candidates, learned)))


def _chunks(candidates: Candidates) -> Iterator[Candidates]:
    return (candidates.take(slice(first, first + CHUNK)) for first in range(0, candidates.count, CHUNK))


def _figures(candidates: Candidates, learned: LearnedCluster) -> Iterator[Figures]:
    for part in _chunks(candidates):
        memory, time = memory_of(part, learned=learned.memory), stages_of(part, constants=learned.constants)
        tokens = tokens_per_s_per_gpu(part, time.step)
        yield Figures(tokens_per_s_per_gpu=tokens, needs_gib=memory.upper_gib + memory.outside_gib)


def of_sizes(table: Candidates, sizes: tuple[int, ...]) -> Flags:
    """Returns bool[N]: the rows with these TP, PP, VPP, CP, EP and ETP."""
    columns = (table.tp, table.pp, table.vpp, table.cp, table.ep, table.etp)
    matching = np.ones(table.count, dtype=bool)
    for column, size in zip(columns, sizes, strict=True):
        matching &= column == size
    return matching
