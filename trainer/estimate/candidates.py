"""A table of many settings of one model on one cluster, by column: the input of every estimate.

An estimate is written once, as NumPy over columns. One recipe is a table of one row; `plan` uses a table of a hundred
thousand. A knob with the same value in all rows is one value of shape [], which broadcasts: formulas need not know
which knobs vary. Shapes: N rows (candidates), P pipeline ranks (the most of any row).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.model.flops import attended, mean_attended
from trainer.recipe.layout import layers_of_ranks, mtp_layers_of_ranks, pipeline_stages
from trainer.recipe.schema import Recipe

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

SPLIT = (  # knobs that decide which layers a pipeline rank holds
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "pipeline_model_parallel_layout",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)


FEW_RANKS = 32  # columns of that many ranks still fit in the cache together
SPARSE = 8  # if there are more possible numbers per actual one than this, sorting is faster than marking


@dataclass(frozen=True, kw_only=True)
class Column:
    """One knob in every row: `choices[codes[n]]`. `codes` has shape [N], or [] if all rows share one value."""

    choices: tuple[Any, ...]
    codes: Integers

    def each(self, value_of: Callable[[Any], Any]) -> NDArray[Any]:
        """Returns `value_of` of every row's value, [N] or []; computed once per choice."""
        return np.array([value_of(choice) for choice in self.choices])[self.codes]


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The layers and modules of each pipeline rank in each row, [N, P] or [1, P]; zero beyond the row's own PP."""

    exists: Flags
    dense: Floats  # decoder layers without experts
    moe: Floats
    attending: Floats  # dense and MoE layers, each weighted by the positions its attention sees over the model's mean
    mtp: Floats  # multi-token-prediction layers, of the model's `mtp_kind`; in the rank's last chunk
    embeds: Flags  # the first rank holds the token embedding
    heads: Flags  # the last rank holds the output head and the loss
    norms: Flags  # the rank of the last decoder layer holds the final norm; without MTP, that of the head


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """The decoder layers of each model chunk, for every distinct split in a table, [K, P, V]; zero beyond a split's own
    ranks and chunks. K splits, V chunks per rank."""

    dense: Floats  # [K, P, V]
    moe: Floats
    attending: Floats
    of_row: Integers  # index of each row's split, [N], or a single 0 of shape [] if no knob of the split varies


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    base: Recipe
    columns: Mapping[str, Column]  # the knobs that vary, by name
    count: int  # number of rows, N

    def column(self, name: str) -> Column:
        found = self.columns.get(name)
        return found or Column(choices=(self.base.knob(name),), codes=np.zeros((), dtype=np.int64))

    @cached_property
    def _known(self) -> dict[tuple[Any, ...], NDArray[Any]]:
        """Returns the cache of arrays computed from columns: an estimate reads the same ones for every set of
        constants."""
        return {}

    def number(self, name: str, *, none: float = 0.0) -> Floats:
        """Returns a numeric knob as floats; null counts as `none`."""
        key = (name, none)
        if key not in self._known:
            self._known[key] = self._each(name, lambda value: none if value is None else float(value))
        return self._known[key]

    def where(self, name: str, holds: Callable[[Any], bool]) -> Flags:
        return self._each(name, lambda value: bool(holds(value)))

    def _each(self, name: str, value_of: Callable[[Any], Any]) -> NDArray[Any]:
        """Returns `value_of` of a knob's value in every row, [N], or [] if the knob does not vary."""
        column = self.columns.get(name)
        return np.array(value_of(self.base.knob(name)))[()] if column is None else column.each(value_of)

    def on(self, name: str) -> Flags:
        """Returns [N]: true where a knob is neither null, false, zero nor empty."""
        key = (name, bool)
        if key not in self._known:
            self._known[key] = self.where(name, bool)
        return self._known[key]

    def among(self, name: str, *values: Any) -> Flags:
        key = (name, "among", values)
        if key not in self._known:
            self._known[key] = self.where(name, lambda value: value in values)
        return self._known[key]

    def lists(self, name: str, word: str) -> Flags:
        """Returns [N]: true where a list knob contains the word."""
        return self.where(name, lambda value: word in (value or ()))

    @cached_property
    def whole_iteration(self) -> Flags:
        """Returns [N]: true where one CUDA graph holds the whole iteration; Megatron-Core 0.16.1 spells it `local`
        with scope `full_iteration`."""
        local = self.among("cuda_graph_impl", "local") & self.lists("cuda_graph_scope", "full_iteration")
        return self.among("cuda_graph_impl", "full_iteration") | local

    @cached_property
    def tp(self) -> Floats:
        return self.number("tensor_model_parallel_size")

    @cached_property
    def pp(self) -> Floats:
        return self.number("pipeline_model_parallel_size")

    @cached_property
    def cp(self) -> Floats:
        return self.number("context_parallel_size")

    @cached_property
    def ep(self) -> Floats:
        return self.number("expert_model_parallel_size")

    @cached_property
    def etp(self) -> Floats:
        """Returns the ETP sizes; TP where ETP is not set, as in Megatron."""
        written = self.number("expert_tensor_parallel_size")
        return np.where(written > 0, written, self.tp)

    @cached_property
    def vpp(self) -> Floats:
        """Returns the model chunks per rank, 1 without interleaving."""
        stages = self.column("pipeline_model_parallel_layout")
        written = self.number("virtual_pipeline_model_parallel_size", none=1.0)
        if stages.choices == (None,):
            return written
        pieces = stages.each(_pieces)
        return np.where(pieces > 0, np.maximum(1.0, pieces // self.pp), written)

    @cached_property
    def dp(self) -> Floats:
        """Returns the DP sizes, rounded down where the layout is illegal, at least 1."""
        return np.maximum(1.0, self.base.world_size // (self.tp * self.pp * self.cp))

    @cached_property
    def edp(self) -> Floats:
        return np.maximum(1.0, self.base.world_size // (self.etp * self.ep * self.pp))

    @cached_property
    def microbatches(self) -> Floats:
        """Returns the micro batches of a rank per step, at least 1."""
        each = self.number("micro_batch_size") * self.dp
        return np.maximum(1.0, self.number("global_batch_size") // each)

    @cached_property
    def group(self) -> Floats:
        """Returns the micro batches that a rank sends through one chunk before the next, PP by default."""
        written = self.number("microbatch_group_size_per_vp_stage")
        return np.where(written > 0, written, self.pp)

    @cached_property
    def tokens(self) -> Floats:
        """Returns the tokens of one micro batch on one rank, before sequence parallelism divides them."""
        return self.number("micro_batch_size") * self.number("seq_length") / self.cp

    @cached_property
    def stages(self) -> Stages:
        """Returns the split of layers over pipeline ranks, computed once per distinct split."""
        one = _stacked(self._splits[0], self.chunks)
        if not self._splits[1].shape:
            return one
        return Stages(**{name: getattr(one, name)[self._splits[1]] for name in Stages.__dataclass_fields__})

    @cached_property
    def chunks(self) -> Chunks:
        recipes, rows = self._splits
        return _chunked(recipes, rows)

    @cached_property
    def _splits(self) -> tuple[list[Recipe], Integers]:
        """Returns (one recipe per distinct split of layers, the index of each row's split: [N], or a single 0 of shape
        [] if no knob of the split varies)."""
        varied = [name for name in SPLIT if name in self.columns]
        if not varied:
            return [self.base], np.zeros((), dtype=np.int64)
        kinds, rows = self.combinations(varied)
        return [self.base.replace(dict(zip(varied, kind, strict=True))) for kind in kinds], rows

    def combinations(self, names: Sequence[str]) -> tuple[list[tuple[Any, ...]], Integers]:
        """Returns the distinct combinations of these knobs' values, and the index of each row's combination, [N]."""
        columns = [self.column(name) for name in names]
        sizes = tuple(len(column.choices) for column in columns)
        flat = np.zeros(self.count, dtype=np.int64)
        for column, size in zip(columns, sizes, strict=True):
            flat = flat * size + column.codes
        kinds, rows = _distinct(flat, math.prod(sizes))
        codes = zip(*np.unravel_index(kinds, sizes), strict=True) if names else [()]
        values = [tuple(column.choices[code] for column, code in zip(columns, kind, strict=True)) for kind in codes]
        return values, rows

    def take(self, rows: Any) -> Candidates:
        """Returns the rows that an index, a slice or a mask selects."""
        columns = {name: Column(choices=c.choices, codes=c.codes[rows]) for name, c in self.columns.items()}
        return Candidates(base=self.base, columns=columns, count=len(np.arange(self.count)[rows]))

    def changes(self, row: int) -> dict[str, Any]:
        """Returns the varied knobs of one row, with their values."""
        return {name: column.choices[column.codes[row]] for name, column in self.columns.items()}

    def recipe(self, row: int) -> Recipe:
        return self.base.replace(self.changes(row))


def _distinct(numbers: Integers, below: int) -> tuple[Integers, Integers]:
    """Returns the distinct numbers, ascending, and the index of each number among them. All are less than `below`."""
    if below > SPARSE * len(numbers):
        kinds, of_each = np.unique(numbers, return_inverse=True)
        return kinds, of_each.reshape(-1)
    used = np.zeros(below, dtype=bool)
    used[numbers] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[numbers]


def _pieces(text: str | None) -> float:
    """Returns the number of stages in a pipeline layout; 0 without one, or if it cannot be read (a rule reports
    that)."""
    try:
        return float(len(pipeline_stages(text or "")))
    except ValueError:
        return 0.0


def _chunked(recipes: Sequence[Recipe], rows: Integers) -> Chunks:
    model, seq_length = recipes[0].architecture, recipes[0].training.seq_length
    flags, seen, mean = model.moe_layers, attended(model, seq_length), mean_attended(model, seq_length)
    attends = [each / mean if mean else 1.0 for each in seen]
    splits = [layers_of_ranks(recipe) for recipe in recipes]
    shape = (len(splits), max(map(len, splits)), max(len(chunks) for split in splits for chunks in split))
    every, moe, attending = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for kind, split in enumerate(splits):
        for rank, chunks in enumerate(split):
            for number, chunk in enumerate(chunks):
                every[kind, rank, number] = len(chunk)
                moe[kind, rank, number] = sum(flags[layer] for layer in chunk)
                attending[kind, rank, number] = sum(attends[layer] for layer in chunk)
    return Chunks(dense=every - moe, moe=moe, attending=attending, of_row=rows)


def _stacked(recipes: Sequence[Recipe], chunks: Chunks) -> Stages:
    """Returns the Stages, [R, P], of R recipes of one model."""
    model = recipes[0].architecture
    splits = [layers_of_ranks(recipe) for recipe in recipes]
    sizes = np.array([len(split) for split in splits])[:, None]
    shape = chunks.moe.shape[:2]
    mtp = np.zeros(shape)
    for row, split in enumerate(splits):
        mtp[row, : len(split)] = mtp_layers_of_ranks(recipes[row])
    ends = [_rank_of_last_layer(split) for split in splits]
    numbers = np.broadcast_to(np.arange(shape[1])[None, :], shape)
    heads = numbers == sizes - 1
    norms = numbers == np.array(ends)[:, None] if model.mtp_num_layers else heads
    return Stages(
        exists=numbers < sizes,
        dense=chunks.dense.sum(axis=2),
        moe=chunks.moe.sum(axis=2),
        attending=chunks.attending.sum(axis=2),
        mtp=mtp,
        embeds=numbers == 0,
        heads=heads,
        norms=norms,
    )


def _rank_of_last_layer(split: list[list[list[int]]]) -> int:
    """Returns the pipeline rank of the last decoder layer of `split` [PP][VPP][layers]; the last rank if there are no
    layers."""
    ends = [max((layer for chunk in chunks for layer in chunk), default=-1) for chunks in split]
    return max(range(len(ends)), key=lambda rank: (ends[rank], rank))


def most_of_ranks(figures: Floats) -> Floats:
    """Returns the maximum over the last axis, such as that of pipeline ranks.

    NumPy reduces a short last axis row by row, which takes many times as long as going by columns.
    """
    ranks = figures.shape[-1]
    if not 0 < ranks <= FEW_RANKS:
        return np.asarray(figures.max(axis=-1))
    return reduce(np.maximum, (figures[..., rank] for rank in range(ranks)))


def one(recipe: Recipe) -> Candidates:
    """Returns a recipe as a table of one row."""
    return Candidates(base=recipe, columns={}, count=1)


def table(base: Recipe, columns: Mapping[str, Sequence[Any]]) -> Candidates:
    """Returns a table from columns of equal length, by Megatron's names of knobs.

    Raises ValueError for unequal lengths.
    """
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise ValueError(f"columns of {sorted(lengths)} rows")
    encoded = {name: _encoded(values) for name, values in columns.items()}
    return Candidates(base=base, columns=encoded, count=lengths.pop() if lengths else 1)


def tabulate(recipes: Sequence[Recipe]) -> Candidates:
    """Returns recipes of one model on one cluster as rows of a table. Raises ValueError if there are none."""
    if not recipes:
        raise ValueError("no recipes")
    names = sorted({name for recipe in recipes for name in recipes[0].diff(recipe)})
    columns = {name: _encoded([recipe.knob(name) for recipe in recipes]) for name in names}
    return Candidates(base=recipes[0], columns=columns, count=len(recipes))


def _encoded(values: Sequence[Any]) -> Column:
    codes: dict[Any, int] = {}
    rows = [codes.setdefault(value, len(codes)) for value in values]
    return Column(choices=tuple(codes), codes=np.array(rows, dtype=np.int64))
