"""What `plan` varies, as axes that a sampler can be asked for, and the legal recipe nearest to any point of them.

Layouts with their recompute are one table (legal rows only), the other settings a second one: a point is made legal by
taking the nearest row of the first and, beside it, the nearest of the second that no rule forbids.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats, Integers
from trainer.estimate.plan.choices import broken, written_out
from trainer.estimate.plan.search import Scored, outline
from trainer.recipe import Recipe

SIZES = {
    "TP": "tensor_model_parallel_size",
    "PP": "pipeline_model_parallel_size",
    "VPP": "virtual_pipeline_model_parallel_size",
    "CP": "context_parallel_size",
    "EP": "expert_model_parallel_size",
    "ETP": "expert_tensor_parallel_size",
    "micro batch": "micro_batch_size",
}
RECOMPUTE = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")
SETTINGS = {
    "dispatch": ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
    "overlap": ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute"),
    "graphs": ("cuda_graph_impl", "cuda_graph_scope"),
    "precision": ("precision",),
}
GROUPS = {**{axis: (knob,) for axis, knob in SIZES.items()}, "recompute": RECOMPUTE, **SETTINGS}
LOOKED_AT = 100  # rows nearest to a point before there counts as nothing new around it
NEARLY = 1.1  # of the limit, by the upper bound: what needs more is no row of the space
Point = dict[str, str]  # axis -> label


class Space:
    """The legal space around a recipe. `axes` lists the labels of each axis that has a choice."""

    def __init__(self, recipe: Recipe) -> None:
        found = outline(recipe)
        near = np.flatnonzero(_near_fitting(found.scored, recipe.memory_limit_gib))
        self.rows, self.fits = found.scored.candidates.take(near), found.scored.fits[near]
        self._standing = found.standing
        self._settings = found.settings.take(found.options)
        first = {axis: labels_of(self.rows, knobs) for axis, knobs in GROUPS.items() if axis not in SETTINGS}
        second = {axis: labels_of(self._settings, knobs) for axis, knobs in GROUPS.items() if axis not in SIZES}
        self._layouts = {axis: names for axis, names in first.items() if len(set(names)) > 1}
        self._options = {axis: names for axis, names in second.items() if axis in SETTINGS and len(set(names)) > 1}
        self._recompute, self._recompute_of = second["recompute"], first["recompute"]
        every = {**self._layouts, **self._options}
        self.axes = {axis: tuple(sorted(set(names))) for axis, names in every.items()}
        self._logs = {
            axis: np.log2([_number(name) for name in names]) for axis, names in first.items() if axis in SIZES
        }

    def point(self, recipe: Recipe) -> Point | None:
        """Where a recipe lies; None where an axis has no such label."""
        point = {axis: label(tuple(recipe.knob(knob) for knob in GROUPS[axis])) for axis in self.axes}
        return point if all(name in self.axes[axis] for axis, name in point.items()) else None

    def nearest(self, point: Point) -> Iterator[Recipe]:
        """Legal recipes, the nearest first."""
        for row in np.argsort(self._distance(point), kind="stable")[:LOOKED_AT]:
            for option in self._beside(int(row), point):
                if recipe := self._recipe(int(row), option):
                    yield recipe
                    break

    def drawn(self, dice: random.Random) -> Iterator[Recipe]:
        """Legal recipes predicted to fit, at random and without end; nothing where nothing fits."""
        rows = np.flatnonzero(self.fits)
        while len(rows):
            row = int(dice.choice(rows))
            options = np.flatnonzero(self._recompute == self._recompute_of[row])
            if len(options) and (recipe := self._recipe(row, int(dice.choice(options)))):
                yield recipe

    def _distance(self, point: Point) -> Floats:
        """Doublings of sizes, and one for another recompute, of every row."""
        total = np.zeros(self.rows.count)
        for axis, names in self._layouts.items():
            if axis in SIZES:
                total += np.abs(self._logs[axis] - math.log2(_number(point[axis])))
            else:
                total += names != point[axis]
        return total

    def _beside(self, row: int, point: Point) -> Integers:
        """Settings with the row's recompute, the nearest first."""
        options = np.flatnonzero(self._recompute == self._recompute_of[row])
        moved = sum((names[options] != point[axis] for axis, names in self._options.items()), np.zeros(len(options)))
        return options[np.argsort(moved, kind="stable")]

    def _recipe(self, row: int, option: int) -> Recipe | None:
        recipe = self.rows.base.replace(self.rows.changes(row) | self._settings.changes(option))
        return None if broken(recipe, self._standing) else written_out(recipe)


def _near_fitting(rows: Scored, limit_gib: float | None) -> Flags:
    """bool[N]: what a memory gate may yet let through; every row where nothing is near."""
    near = rows.figures.needs_gib <= NEARLY * (limit_gib or np.inf)
    return near if near.any() else np.ones_like(near)


def labels_of(table: Candidates, knobs: tuple[str, ...]) -> np.ndarray[Any, Any]:
    """[N] texts of what each row has in these knobs."""
    columns = [table.column(knob) for knob in knobs]
    codes = [np.broadcast_to(column.codes, (table.count,)) for column in columns]
    stacked, rows = np.unique(np.stack(codes), axis=1, return_inverse=True)
    names = [label(tuple(c.choices[code] for c, code in zip(columns, kind, strict=True))) for kind in stacked.T]
    return np.array(names, dtype=object)[rows.reshape(-1)]


def label(values: tuple[Any, ...]) -> str:
    return ", ".join("+".join(value) if isinstance(value, tuple) else str(value) for value in values)


def _number(name: str) -> float:
    """Of a size; not written is one."""
    return float(name) if name != "None" else 1.0
