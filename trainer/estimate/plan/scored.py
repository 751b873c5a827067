"""Candidates with their estimates, and the order in which `plan` takes them. Shapes: N rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from trainer.estimate.candidates import Candidates, Flags, Floats, Integers
from trainer.estimate.time.bound import ratio_spread, unproven_offloads

# throughputs this close (a fraction) count as equal: then a DP size above 1, and after that less memory, decides
EQUAL_WITHIN = 0.002


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Estimates of every row, [N]."""

    tokens_per_s_per_gpu: Floats
    needs_gib: Floats  # upper bound of the hottest rank, with GPU memory outside the allocator

    def take(self, rows: Any) -> Figures:
        return Figures(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @staticmethod
    def joined(tables: Sequence[Figures]) -> Figures:
        """Concatenates the rows of all tables."""
        names = [field.name for field in fields(Figures)]
        return Figures(
            **{name: np.concatenate([np.zeros(0), *(getattr(table, name) for table in tables)]) for name in names}
        )


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Candidates with their figures; `fits` is by the upper bound, true where no limit is known."""

    candidates: Candidates
    figures: Figures
    fits: Flags
    layout: Integers  # [N], index of the layout of each row

    def take(self, rows: Integers) -> Scored:
        return Scored(
            candidates=self.candidates.take(rows),
            figures=self.figures.take(rows),
            fits=self.fits[rows],
            layout=self.layout[rows],
        )

    @cached_property
    def unproven(self) -> Integers:
        """Returns the number of ways in which each row offloads to the host that no published run has, beyond the
        fewest of any row that fits, [N]; 0 if none fits."""
        count = np.zeros(self.fits.shape, dtype=np.int64)
        for flags in unproven_offloads(self.candidates).values():
            count += flags
        return count - count[self.fits].min() if self.fits.any() else 0 * count

    @cached_property
    def throughput_ratio(self) -> Floats:
        """Returns each row's throughput over that of the fastest row that fits with no unproven offload, [N]; infinite
        if there is none."""
        plain = self.figures.tokens_per_s_per_gpu[self.fits & (self.unproven == 0)].max(initial=0.0)
        return self.figures.tokens_per_s_per_gpu / plain if plain else np.full(self.fits.shape, np.inf)

    @cached_property
    def unsure(self) -> Flags:
        """Returns the rows that fit, but offload more than others that fit and are not surely faster: the 90 % interval
        of their gain holds a loss."""
        return self.fits & (self.unproven > 0) & (self.throughput_ratio <= 1 + ratio_spread(self.unproven))

    @property
    def eligible(self) -> Flags:
        """Returns the rows that `plan` may choose: they fit, and their gain is not unsure."""
        return self.fits & ~self.unsure


def best_first(scored: Scored) -> Integers:
    """Returns the order of rows: those that fit by throughput, then the others by memory."""
    figures, fits = scored.figures, scored.fits
    speed = _places(figures.tokens_per_s_per_gpu)
    without_dp = fits & (scored.candidates.dp == 1)
    return np.lexsort((figures.needs_gib, without_dp, np.where(fits, speed, figures.needs_gib), ~fits))


def _places(tokens: Floats) -> Integers:
    """Returns ranks of throughput, [N]: 0 for the fastest row and all nearly as fast, 1 for the fastest of the rest and
    all nearly as fast as that, and so on."""
    order = np.argsort(-tokens)
    falling = -np.log(tokens[order])
    places = np.zeros(len(tokens), dtype=np.int64)
    first, place = 0, 0
    while first < len(tokens):
        beyond = int(np.searchsorted(falling, falling[first] + EQUAL_WITHIN, side="right"))
        places[order[first:beyond]] = place
        first, place = beyond, place + 1
    return places


def best_of_each_layout(scored: Scored) -> Integers:
    """Returns rows, the best first, one for each combination of TP, PP, VPP, CP, EP and ETP, without unsure ones."""
    kept = np.flatnonzero(~scored.unsure)
    order = kept[best_first(scored.take(kept))]
    sizes = scored.candidates.take(order)
    grid = (sizes.tp, sizes.pp, sizes.vpp, sizes.cp, sizes.ep, sizes.etp)
    keys = np.stack([np.broadcast_to(size, (len(order),)) for size in grid])
    _, first = np.unique(keys, axis=1, return_index=True)
    return order[np.sort(first)]
