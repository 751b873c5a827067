"""The search space of a study, as axes of absolute values that stay fixed while it runs.

A point gives a value of every axis, and every recipe has one. Sizes are numbers; knobs that only make sense together
(recompute's four) are one axis; a value that is not an option counts as OTHER. The sampler makes Optuna's distributions
of the axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trainer.estimate.candidates import Candidates, Floats
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.layout import sizes_of

OTHER = "another value"
LAYOUT = ("TP", "PP", "VPP", "CP", "EP", "ETP")  # in the order of `sizes_of`
BATCH = "micro batch"
# Axes that are not sizes, each of several knobs that have a meaning only together
JOINT_AXES: dict[str, tuple[str, ...]] = {
    "recompute": ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers"),
    "dispatcher": ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
    "CUDA graphs": ("cuda_graph_impl", "cuda_graph_scope"),
}
SIZED = (  # knobs that the sizes represent
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "micro_batch_size"),
)
FOLLOWING = (  # knobs that follow from the others
    *("sequence_parallel", "overlap_p2p_comm", "use_te_rng_tracker", "pipeline_model_parallel_layout"),
    *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
)
Value = int | str
Point = Mapping[str, Value]  # axis -> its value


@dataclass(frozen=True, kw_only=True)
class Size:
    """A positive number up to `high`; the distance between two is in doublings."""

    high: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of several named values; OTHER is one of them."""

    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Space:
    """The axes of a study, by name: `sizes`, and `choices` with the `knobs` that each one sets."""

    sizes: Mapping[str, Size]
    choices: Mapping[str, Choice]
    knobs: Mapping[str, tuple[str, ...]]

    @cached_property
    def axes(self) -> dict[str, Size | Choice]:
        """Returns every axis by name, sizes first."""
        return {**self.sizes, **self.choices}

    def point(self, recipe: Recipe) -> Point:
        """Returns the point of a recipe."""
        sizes = dict(zip((*LAYOUT, BATCH), (*sizes_of(recipe), recipe.training.micro_batch_size), strict=True))
        found: dict[str, Value] = {axis: min(int(sizes[axis]), size.high) for axis, size in self.sizes.items()}
        for axis, choice in self.choices.items():
            name = label(tuple(recipe.knob(knob) for knob in self.knobs[axis]))
            found[axis] = name if name in choice.values else OTHER
        return found

    def distance(self, table: Candidates, point: Point) -> Floats:
        """Returns the distance of every row of a table from a point, [N]: the sum of doublings of sizes and of 1 for
        each choice that differs."""
        total = np.zeros(table.count)
        columns = dict(
            zip(LAYOUT, (table.tp, table.pp, table.vpp, table.cp, table.ep, table.etp), strict=True),
            **{BATCH: table.number("micro_batch_size", none=1.0)},
        )
        for axis in self.sizes:
            total += np.abs(np.log2(np.maximum(columns[axis], 1.0)) - np.log2(float(point[axis])))
        for axis in self.choices:
            kinds, rows = table.combinations(self.knobs[axis])
            differs = np.array([label(kind) != point[axis] for kind in kinds], dtype=np.float64)
            total += differs[rows] if len(kinds) > 1 else differs
        return total


def space_of(base: Recipe, legal: Candidates) -> Space:
    """Returns the space of a study: every value of the `legal` table, of the base, and of the knob table's `tries`."""
    knobs: dict[str, tuple[str, ...]] = dict(JOINT_AXES)
    grouped = {*SIZED, *FOLLOWING, *(name for group in JOINT_AXES.values() for name in group)}
    varied = [name for name, knob in KNOBS.items() if name not in grouped and (name in legal.columns or knob.tries)]
    knobs |= {name: (name,) for name in varied if name not in base.tune.freeze}
    choices = {axis: _choice(axis, names, base, legal) for axis, names in knobs.items()}
    # at least two values besides OTHER
    open_ones = {axis: choice for axis, choice in choices.items() if len(choice.values) > 2}
    high = dict.fromkeys(LAYOUT, base.world_size) | {BATCH: int(base.knob("global_batch_size"))}
    high["VPP"] = base.architecture.num_layers
    return Space(
        sizes={axis: Size(high=most) for axis, most in high.items() if most > 1},
        choices=open_ones,
        knobs={axis: knobs[axis] for axis in open_ones},
    )


def label(values: tuple[Any, ...]) -> str:
    """Returns the name of one combination of values of an axis's knobs."""
    return ", ".join("+".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value) for value in values)


def _choice(axis: str, names: tuple[str, ...], base: Recipe, legal: Candidates) -> Choice:
    found = [label(tuple(base.knob(name) for name in names))]
    found += sorted(map(label, legal.combinations(names)[0]))
    found += [label((value,)) for value in KNOBS[axis].tries] if axis in KNOBS else []
    return Choice(values=(*dict.fromkeys(found), OTHER))
