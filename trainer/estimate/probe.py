"""Predicts a probe's rows by the closed forms: by the functions of the estimates, at a row's shape.

Shapes: R rows; with K sets of constants (arrays [K, 1]) every result has a first axis K. NaN for kinds that KINDS does
not have, and for copies over a host link of unknown rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from trainer.estimate.candidates import Candidates, Floats, tabulate
from trainer.estimate.memory.activations import (
    kept,
    kinds_of,
    saved_by_tensor,
    sequence_parallel_ranks,
    total,
    wide_bytes,
)
from trainer.estimate.memory.buffers import GIB, outside_bytes
from trainer.estimate.memory.estimate import unfused
from trainer.estimate.time.constants import Constants
from trainer.estimate.time.constants import constants as fitted
from trainer.estimate.time.data_parallel import optimizer_s
from trainer.estimate.time.layer_time import LayerTime, layer_time, notify_s
from trainer.estimate.time.links import collective_s, dispatch_s, ring_s
from trainer.measured.software import latest, releases
from trainer.microbenchmarks.row import Row
from trainer.model.flops import mean_attended
from trainer.model.mixers import mixers
from trainer.recipe import Recipe
from trainer.recipe.architecture import Architecture

US = 1e6
EVEN = 1.0  # even load of the hottest expert rank, over the mean
LAYER_FIELDS = ("gemm", "grouped", "attention", "memory_bound", "permute", "quantize")  # fields of LayerTime


class Expected:
    """The predictions of the closed forms for the rows of a recipe's probe; tabulated once."""

    def __init__(self, rows: Sequence[Row], recipe: Recipe) -> None:
        self.rows, self._recipe = rows, recipe

    @cached_property
    def _candidates(self) -> Candidates:
        return tabulate([row.recipe(self._recipe) for row in self.rows])

    def at(self, constants: Constants | None = None) -> Floats:
        """Returns the predicted measurement of each row, in its unit, [R] or [K, R]; `constants` are those that differ
        from the table."""
        values = {**fitted(), **(constants or {})}
        sets = np.broadcast_shapes(*map(np.shape, (constants or {}).values()))[:-1]
        kinds = np.array([row.kind for row in self.rows])
        found = np.full((*sets, len(self.rows)), np.nan)
        for kind in dict.fromkeys(kinds.tolist()):
            if kind in KINDS:
                here = np.flatnonzero(kinds == kind)
                rows = _Rows([row for row in self.rows if row.kind == kind], self._candidates.take(here), values)
                found[..., here] = KINDS[kind](rows)
        return found


class _Rows:
    """Rows of one kind at some constants."""

    def __init__(self, rows: Sequence[Row], candidates: Candidates, values: Mapping[str, float | Floats]) -> None:
        self.rows, self.candidates, self.values = rows, candidates, values

    def size(self, name: str) -> Floats:
        return np.array([row.sizes[name] for row in self.rows])

    def layer(self, *, is_moe: bool) -> LayerTime:
        release = releases()[latest()]
        return layer_time(self.candidates, self.values, release, is_moe=is_moe, given_load=EVEN)

    @property
    def has_experts(self) -> bool:
        return self.candidates.base.architecture.num_moe_experts is not None

    def by_feed(self, of: Callable[[LayerTime], Floats]) -> Floats:
        """Returns a figure of the layer of each row, which has experts or none."""
        moe = np.array([row.sizes.get("moe", 1.0) for row in self.rows]) * self.has_experts
        dense = of(self.layer(is_moe=False))
        return np.where(moe > 0, of(self.layer(is_moe=True)), dense) if moe.any() else dense


def _of_a_layer(name: str) -> Callable[[_Rows], Floats]:
    def us(rows: _Rows) -> Floats:
        found: Floats = US * getattr(rows.layer(is_moe=rows.has_experts), name)
        return found

    return us


def _attention(rows: _Rows) -> Floats:
    """Returns the microseconds of attention in a layer that attends to the whole sequence, as in a probe: without a
    window and without the scans of linear mixers."""
    model = rows.candidates.base.architecture
    of_scans = {name: 0.0 for name in rows.values if name.startswith("scan_time.")}
    alone = _Rows(rows.rows, rows.candidates, {**rows.values, **of_scans})
    over_mean = rows.candidates.column("seq_length").each(lambda length: _over_mean(model, int(length)))
    found: Floats = _of_a_layer("attention")(alone) * over_mean
    return found


def _over_mean(model: Architecture, length: int) -> float:
    """Returns the positions per token of attention over the whole sequence, relative to the mean over the model's
    layers; 1 for sparse attention, which a probe measures as it is."""
    if any(mixers()[kind.mixer].positions is not None for kind in model.layer_kinds):
        return 1.0
    return length / 2 / max(mean_attended(model, length), 1.0)


def _optimizer(rows: _Rows) -> Floats:
    return US * optimizer_s(rows.candidates, rows.values, rows.size("parameters"))


def _host(rows: _Rows) -> Floats:
    return US * rows.by_feed(lambda layer: layer.host)


def _ring(rows: _Rows) -> Floats:
    gb, ranks, stride = (rows.size(name) for name in ("gb", "ranks", "stride"))
    return US * ring_s(rows.candidates, rows.values, gb, ranks, stride=stride)


def _small(rows: _Rows) -> Floats:
    gb, ranks, stride = (rows.size(name) for name in ("gb", "ranks", "stride"))
    return US * collective_s(rows.candidates, rows.values, gb * (ranks - 1) / ranks, ranks, stride=stride)


def _send(rows: _Rows) -> Floats:
    gb, ranks, stride = (rows.size(name) for name in ("gb", "ranks", "stride"))
    return US * collective_s(rows.candidates, rows.values, gb, ranks, stride=stride) * rows.values["pp_time"]


def _dispatch(rows: _Rows) -> Floats:
    return US * dispatch_s(rows.candidates, rows.values)


def _copy(rows: _Rows) -> Floats:
    link = rows.candidates.base.hardware.host_link_gb_s
    rate = np.nan if link is None else link * np.asarray(rows.values["host_link_share"])
    seconds: Floats = rows.size("gb") / rate
    return US * seconds


def _overlapped_layer(rows: _Rows) -> Floats:
    return US * rows.layer(is_moe=True).device


def _kept(rows: _Rows) -> Floats:
    """Returns GiB that one layer keeps: the model's first with experts or the first without, as a probe measures it."""
    candidates, each = rows.candidates, list[Floats]()
    model = candidates.base.architecture
    for is_moe in (False, True):
        first = kinds_of(model, is_moe=is_moe)[:1]
        each.append(total(kept(candidates, saved_by_tensor(candidates, is_moe=is_moe, kinds=first))))
    bytes_kept = np.where(rows.size("moe") > 0, each[True], each[False])
    whole = candidates.among("recompute_granularity", "full")
    input_bytes = model.hidden_size / sequence_parallel_ranks(candidates) * wide_bytes(candidates)
    found: Floats = np.where(whole, input_bytes, bytes_kept) * candidates.tokens * np.ravel(unfused(candidates)) / GIB
    return found


def _filled(value: Callable[[_Rows], float | Floats]) -> Callable[[_Rows], Floats]:
    return lambda rows: np.asarray(value(rows)) + np.zeros(len(rows.rows))


KINDS: dict[str, Callable[[_Rows], Floats]] = {
    **{name: _of_a_layer(name) for name in LAYER_FIELDS},
    "attention": _attention,
    "optimizer": _optimizer,
    **dict.fromkeys(("host_dense", "host_few", "host_many"), _host),
    **dict.fromkeys(("ring_near", "ring_far", "ring_both"), _ring),
    **dict.fromkeys(("small_ring_near", "small_ring_far"), _small),
    **dict.fromkeys(("send_near", "send_far"), _send),
    "dispatch": _dispatch,
    "notify": lambda rows: US * notify_s(rows.candidates, rows.values),
    "copy": _copy,
    "beside": _overlapped_layer,
    "contention": _filled(lambda rows: 1 + rows.values["ep_contention"]),
    "slowed": _filled(lambda rows: rows.values["ep_slowed"]),
    "dp_beside": _filled(lambda rows: 1 - np.asarray(rows.values["dp_exposed"])),
    "layer_kept": _kept,
    "outside": lambda rows: outside_bytes(rows.candidates) / GIB,
}
