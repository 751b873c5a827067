"""The legal space around a recipe: axes of alternatives, each alternative a set of knob changes.

What is tried of a knob by itself is the knob table's (`tries`): every such knob is an axis. Knobs that only make sense
together (recompute's four, TP with sequence parallel) are one axis here, so that every option is a recipe somebody
would write. Options that the rules refuse by themselves are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from policies import degrees
from policies.fix import KnobChanges
from policies.fixes.cuda_graphs import graph_changes
from policies.fixes.dispatcher import ALLGATHER, ALLTOALL, DEEPEP, HYBRIDEP
from policies.legality import Refusal, derive
from policies.recompute import NONE, rungs
from policies.search import Point
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.layout import layout_of

CURRENT = "as it is"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Alternatives of one decision. `options[CURRENT]` changes nothing; labels are stable words."""

    name: str
    options: Mapping[str, KnobChanges]

    @property
    def knobs(self) -> tuple[str, ...]:
        """The knobs that decide where a recipe stands on it."""
        return ROWS[self.name].knobs


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
    """More micro batches through a chunk before the next has its turn: fewer waits, more held."""
    pp = recipe.parallelism.pipeline_model_parallel_size
    return [{"microbatch_group_size_per_vp_stage": count} for count in (None, 2 * pp)]


@dataclass(frozen=True, kw_only=True)
class Row:
    """`knobs` decide where a recipe stands on the axis; an option may change others along with them."""

    knobs: tuple[str, ...]
    options: Callable[[Recipe], list[KnobChanges]]


def _alone(knob: str) -> Row:
    """A knob by itself, at the values of its row in the knob table."""
    return Row(knobs=(knob,), options=lambda recipe: [{knob: value} for value in KNOBS[knob].tries])


def _degree_row(name: str, companions: Callable[[Recipe, int], list[KnobChanges]]) -> Row:
    return Row(knobs=(degrees.DEGREES[name],), options=_degree(name, companions))


# In the order in which axes join Optuna's search when more than the ones that mattered are wanted.
AXES: dict[str, Row] = {
    "recompute": Row(knobs=tuple(NONE), options=rungs),
    "micro batch": Row(knobs=("micro_batch_size",), options=_micro_batches),
    "dispatcher": Row(
        knobs=("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
        options=lambda recipe: [ALLTOALL, ALLGATHER, DEEPEP, HYBRIDEP],
    ),
    "EP": _degree_row("ep", degrees.with_ep),
    "threads": Row(knobs=("threads_per_rank",), options=_threads),
    "EP overlap": _alone("overlap_moe_expert_parallel_comm"),
    "CUDA graphs": Row(knobs=("cuda_graph_impl",), options=_graphs),
    "gradient overlap": _alone("overlap_grad_reduce"),
    "parameter overlap": _alone("overlap_param_gather"),
    "TP": _degree_row("tp", degrees.with_tp),
    "PP": _degree_row("pp", degrees.with_pp),
    "VPP": Row(knobs=("virtual_pipeline_model_parallel_size",), options=_interleaving),
    "CP": _degree_row("cp", degrees.with_cp),
    "grouped GEMM": _alone("moe_grouped_gemm"),
    "permute fusion": _alone("moe_permute_fusion"),
    "router fusion": _alone("moe_router_fusion"),
    "delayed wgrad": _alone("delay_wgrad_compute"),
    "shared expert overlap": _alone("moe_shared_expert_overlap"),
    "garbage collection": _alone("manual_gc"),
    "distributed optimizer": _alone("use_distributed_optimizer"),
}
# All that may move: what only a model that weighs it can afford to look at, and every other knob of the table
ROWS: dict[str, Row] = {
    **AXES,
    "stages": Row(knobs=("pipeline_model_parallel_layout",), options=degrees.laid_evenly),
    "chunk groups": Row(knobs=("microbatch_group_size_per_vp_stage",), options=_groups),
    **{
        name: _alone(name)
        for name, knob in KNOBS.items()
        if knob.tries and not any(name in row.knobs for row in AXES.values())
    },
}


def axis_of(name: str, recipe: Recipe, worth: Callable[[Recipe], bool]) -> Axis | None:
    """The axis with its options that are legal from `recipe` and worth a look; None when nothing is to choose."""
    options: dict[str, KnobChanges] = {CURRENT: {}}
    seen = {recipe.digest()}
    for changes in ROWS[name].options(recipe):
        derived = derive(recipe, changes)
        if isinstance(derived, Refusal) or derived.digest() in seen or not worth(derived):
            continue
        seen.add(derived.digest())
        options[_label(changes)] = changes
    return Axis(name=name, options=options) if len(options) > 1 else None


def moves(recipe: Recipe) -> Iterator[tuple[Axis, str, Recipe]]:
    """Every single step along every axis: the axis, its option, and the legal recipe that it makes."""
    for name in ROWS:
        axis = axis_of(name, recipe, lambda derived: True)
        for label, changes in axis.options.items() if axis else ():
            derived = derive(recipe, changes)
            if axis and label != CURRENT and isinstance(derived, Recipe):
                yield axis, label, derived


def recipe_at(recipe: Recipe, axes: Sequence[Axis], point: Point) -> Recipe | Refusal:
    """The recipe a point stands for; later axes win where two touch one knob."""
    changes: KnobChanges = {}
    for axis in axes:
        changes |= axis.options[point[axis.name]]
    return derive(recipe, changes) if changes else Refusal(reason="it is the best recipe itself")


def point_of(recipe: Recipe, axes: Sequence[Axis], other: Recipe) -> Point | None:
    """Where another recipe lies on these axes around `recipe`; None when it lies outside."""
    point: Point = {}
    for axis in axes:
        label = next((label for label in axis.options if _matches(recipe, axis, label, other)), None)
        if label is None:
            return None
        point[axis.name] = label
    return point


def _matches(recipe: Recipe, axis: Axis, label: str, other: Recipe) -> bool:
    changes = axis.options[label]
    return all(other.knob(knob) == changes.get(knob, recipe.knob(knob)) for knob in axis.knobs)


def _label(changes: KnobChanges) -> str:
    return ", ".join(f"{knob}={value}" for knob, value in changes.items())
