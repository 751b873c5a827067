"""Candidates around the incumbent: single moves along every dimension, and pairs of moves.

An option of a dimension is a set of knob changes made together (recompute's four knobs, TP with sequence parallel).
Every knob with values to try in the knob table (`tries`) is a dimension by itself. Dimensions include knobs that `plan`
does not vary. Options that violate a rule are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from policies.candidates.candidate import Group, group_of
from policies.candidates.free import gives_up
from policies.changes import degrees
from policies.changes.fix import Fix, KnobChanges
from policies.changes.legality import Refusal, derive
from policies.changes.recompute import NONE, levels
from policies.constants import constant
from policies.fixes import FIXES
from policies.fixes.cuda_graphs import graph_changes
from policies.fixes.dispatcher import ALLGATHER, ALLTOALL, DEEPEP, HYBRIDEP
from policies.search.acquisition import score, unscored
from policies.search.avoid import Avoid
from policies.situation import Situation
from policies.surrogate.kernel import features
from policies.surrogate.surrogate import Surrogate
from policies.trial import Phase
from trainer.estimate.candidates import Flags, tabulate
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.layout import layout_of

PAIRED_NEIGHBOURS = int(constant("paired_neighbours"))
UNMODELLED_LOG_STEP = constant("unmodelled_log_step")


@dataclass(frozen=True, kw_only=True)
class Move:
    """One option of a dimension, or of a fix: its knob changes, and the legal recipe that they make from the incumbent.

    `dimension` is the name of the dimension or of the fix.
    """

    dimension: str
    changes: Mapping[str, object]
    recipe: Recipe


def _micro_batches(recipe: Recipe) -> list[KnobChanges]:
    rows = recipe.knob("global_batch_size") // recipe.data_parallel_size
    return [{"micro_batch_size": 2**power} for power in range(rows.bit_length()) if rows % 2**power == 0]


def _degree(name: str, companions: Callable[[Recipe, int], list[KnobChanges]]) -> Callable[[Recipe], list[KnobChanges]]:
    def options(recipe: Recipe) -> list[KnobChanges]:
        sizes = [*degrees.smaller(recipe, name), *degrees.larger(recipe, name)[:1]]
        return [change for size in sizes for change in companions(recipe, size)]

    return options


def _threads(recipe: Recipe) -> list[KnobChanges]:
    return [{"threads_per_rank": threads} for threads in (1, 2, 4, 8)] if recipe.hardware.is_cpu else []


def _graphs(recipe: Recipe) -> list[KnobChanges]:
    return [{"cuda_graph_impl": "none", "cuda_graph_scope": None}, *graph_changes(recipe)]


def _interleaving(recipe: Recipe) -> list[KnobChanges]:
    plain: KnobChanges = {"virtual_pipeline_model_parallel_size": None, "overlap_p2p_comm": False}
    whole = [plain | split for split in degrees.splits(recipe, layout_of(recipe).pp, 1)]
    return [*whole, *(change for chunks in (2, 4) for change in degrees.with_vpp(recipe, chunks))]


def _groups(recipe: Recipe) -> list[KnobChanges]:
    """Returns options for `microbatch_group_size_per_vp_stage`: larger groups wait less and keep more activations."""
    pp = recipe.parallelism.pipeline_model_parallel_size
    return [{"microbatch_group_size_per_vp_stage": count} for count in (None, 2 * pp)]


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """One dimension of the search: a size, a setting, or knobs that have a meaning only together.

    `options` returns its sets of knob changes; `knobs` are those whose values identify the current option. An option
    may change further knobs.
    """

    knobs: tuple[str, ...]
    options: Callable[[Recipe], list[KnobChanges]]


def _alone(knob: str) -> Dimension:
    """Returns the dimension of a single knob, with the values to try from its row in the knob table."""
    return Dimension(knobs=(knob,), options=lambda recipe: [{knob: value} for value in KNOBS[knob].tries])


def _degree_row(name: str, companions: Callable[[Recipe, int], list[KnobChanges]]) -> Dimension:
    return Dimension(knobs=(degrees.DEGREES[name],), options=_degree(name, companions))


DIMENSIONS: dict[str, Dimension] = {
    "recompute": Dimension(knobs=tuple(NONE), options=levels),
    "micro batch": Dimension(knobs=("micro_batch_size",), options=_micro_batches),
    "dispatcher": Dimension(
        knobs=("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
        options=lambda recipe: [ALLTOALL, ALLGATHER, DEEPEP, HYBRIDEP],
    ),
    "EP": _degree_row("ep", degrees.with_ep),
    "threads": Dimension(knobs=("threads_per_rank",), options=_threads),
    "CUDA graphs": Dimension(knobs=("cuda_graph_impl",), options=_graphs),
    "TP": _degree_row("tp", degrees.with_tp),
    "PP": _degree_row("pp", degrees.with_pp),
    "VPP": Dimension(knobs=("virtual_pipeline_model_parallel_size",), options=_interleaving),
    "CP": _degree_row("cp", degrees.with_cp),
    "stages": Dimension(knobs=("pipeline_model_parallel_layout",), options=degrees.even_cost_layouts),
    "microbatch_group_size_per_vp_stage": Dimension(knobs=("microbatch_group_size_per_vp_stage",), options=_groups),
}
DIMENSIONS |= {
    name: _alone(name)
    for name, knob in KNOBS.items()
    if knob.tries and not any(name in dimension.knobs for dimension in DIMENSIONS.values())
}


def moves(recipe: Recipe) -> Iterator[Move]:
    """Yields every legal single move from a recipe, each recipe once per dimension."""
    for name, dimension in DIMENSIONS.items():
        seen = {recipe.digest()}
        for changes in dimension.options(recipe):
            derived = derive(recipe, changes)
            if not isinstance(derived, Refusal) and derived.digest() not in seen:
                seen.add(derived.digest())
                yield Move(dimension=name, changes=changes, recipe=derived)


def moves_of_fixes(situation: Situation) -> Iterator[Move]:
    """Yields the legal moves of every fix that takes part in the search."""
    for fix in FIXES.values():
        if set(fix.phases) != {Phase.FIT}:
            yield from moves_of(fix, situation)


def moves_of(fix: Fix, situation: Situation) -> Iterator[Move]:
    """Yields the legal moves that a fix makes, in its order of preference; none if it does not apply."""
    if fix.precondition(situation) is not None:
        return
    for changes in fix.changes(situation):
        derived = derive(situation.recipe, changes)
        if not isinstance(derived, Refusal):
            yield Move(dimension=fix.name, changes=changes, recipe=derived)


def neighbours(
    incumbent: Recipe, near: Sequence[Move], surrogate: Surrogate, avoid: Avoid, *, min_fit: float
) -> Group | None:
    """Returns the moves in `near` that the surrogate can distinguish from the incumbent, scored; None if there are
    none."""
    modelled = modelled_moves(incumbent, near, surrogate)
    return _scored([move.recipe for move in modelled], incumbent, surrogate, avoid, min_fit) if modelled else None


def moves_that_fit(near: Sequence[Move], surrogate: Surrogate, *, min_fit: float) -> Group:
    """Returns the moves that should fit (the first move if none should), without scores, for samplers that do not rank
    by the acquisition."""
    recipes = [move.recipe for move in near]
    keep = surrogate.memory.fits(tabulate(recipes)) >= min_fit
    kept = [recipe for recipe, fits in zip(recipes, keep, strict=True) if fits] or recipes[:1]
    return group_of(kept, tabulate(kept), unscored(len(kept)))


def pairs(
    incumbent: Recipe, near: Sequence[Move], surrogate: Surrogate, avoid: Avoid, *, min_fit: float
) -> Group | None:
    """Returns all pairs of the PAIRED_NEIGHBOURS most promising moves, scored; None if there are none."""
    single = [m for m in modelled_moves(incumbent, near, surrogate) if avoid.refusal(m.recipe) is None]
    if len(single) < 2:
        return None
    improvement = _scored([m.recipe for m in single], incumbent, surrogate, avoid, min_fit).scores.expected_improvement
    few = [single[at] for at in np.argsort(-improvement, kind="stable")[:PAIRED_NEIGHBOURS]]
    both = (
        derive(incumbent, {**one.changes, **other.changes})
        for one, other in combinations(few, 2)
        if one.dimension != other.dimension
    )
    legal = [each for each in both if not isinstance(each, Refusal) and not avoid.excludes(each)]
    return _scored(legal, incumbent, surrogate, avoid, min_fit) if legal else None


def modelled_moves(incumbent: Recipe, near: Sequence[Move], surrogate: Surrogate) -> list[Move]:
    """Drops moves that the surrogate cannot distinguish from the incumbent.

    Their expected improvement would only be the surrogate's uncertainty of the incumbent. Also drops moves that only
    give up settings without a cost or with a published gain.
    """
    single = [move for move in near if not gives_up(incumbent, move.recipe)]
    if not single:
        return []
    keep = is_modelled(incumbent, [move.recipe for move in single], surrogate)
    return [move for move, modelled in zip(single, keep, strict=True) if modelled]


def is_modelled(incumbent: Recipe, recipes: Sequence[Recipe], surrogate: Surrogate) -> Flags:
    """Returns bool[N]: recipes that the surrogate distinguishes from the incumbent, by predicted step time or by the
    features of its Gaussian process."""
    table = tabulate([incumbent, *recipes])
    where, log_steps = features(table), surrogate.time.means(table)
    found: Flags = (where[1:] != where[0]).any(axis=1) | (np.abs(log_steps[1:] - log_steps[0]) >= UNMODELLED_LOG_STEP)
    return found


def _scored(recipes: Sequence[Recipe], incumbent: Recipe, surrogate: Surrogate, avoid: Avoid, min_fit: float) -> Group:
    table, now = tabulate(recipes), surrogate.time.closed_form_of(incumbent)
    return group_of(recipes, table, score(table, now, surrogate, avoid, min_fit=min_fit))
