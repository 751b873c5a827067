"""Derives a cluster's memory prior from a probe's rows on the tensors of a layer, the allocator, and memory outside
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from policies.constants import constant
from policies.surrogate.memory import GROUPS, MemoryPrior, table_memory_prior
from trainer.estimate.probe import Expected
from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe

LAYER_DEVIATION = constant("probed_layer_deviation")
DISCREPANCY = constant("probed_memory_discrepancy")
OUTSIDE_DEVIATION = constant("probed_outside_deviation")
FRAGMENTATION = constant("expected_fragmentation")
FRAGMENTATION_DEVIATION = constant("probed_fragmentation_deviation")


def memory_prior_of(rows: Sequence[Row], recipe: Recipe) -> MemoryPrior:
    """Returns the tables' prior, with the figures that the rows measured in place of the tables'; on CPUs the tables'
    prior alone."""
    known = {kind: [row for row in rows if row.kind == kind and row.measured is not None] for kind in KINDS}
    prior = table_memory_prior()
    for kind, update in KINDS.items():
        if known[kind] and not recipe.hardware.is_cpu:
            prior = update(prior, known[kind], recipe)
    return prior


def _layer(prior: MemoryPrior, rows: Sequence[Row], recipe: Recipe) -> MemoryPrior:
    """Combines the prior of the activations group with the ratio of measured to counted bytes of layers, all rows
    together, weighted by precision."""
    at = list(GROUPS).index("activations")
    over = sum(row.measured or 0.0 for row in rows) / float(np.sum(Expected(rows, recipe).at())) - 1
    theirs, ours = LAYER_DEVIATION**-2.0, prior.spread[at] ** -2.0
    mean, spread = prior.mean.copy(), prior.spread.copy()
    mean[at] = (ours * mean[at] + theirs * over) / (ours + theirs)
    spread[at] = (ours + theirs) ** -0.5
    return replace(prior, mean=mean, spread=spread, discrepancy=DISCREPANCY)


def _outside(prior: MemoryPrior, rows: Sequence[Row], recipe: Recipe) -> MemoryPrior:
    spread = prior.spread.copy()
    spread[-1] = OUTSIDE_DEVIATION
    more = float((rows[0].measured or 0.0) - Expected(rows, recipe).at()[0])
    return replace(prior, spread=spread, outside_gib=more)


def _fragmentation(prior: MemoryPrior, rows: Sequence[Row], recipe: Recipe) -> MemoryPrior:
    at = list(GROUPS).index("fragmentation")
    mean, spread = prior.mean.copy(), prior.spread.copy()
    mean[at], spread[at] = 0.0, FRAGMENTATION_DEVIATION
    scale = (1 - FRAGMENTATION) / (1 - (rows[0].measured or 0.0))
    return replace(prior, mean=mean, spread=spread, scale=scale)


def _second_step(prior: MemoryPrior, rows: Sequence[Row], recipe: Recipe) -> MemoryPrior:
    return replace(prior, step_gib=rows[0].measured or 0.0)


KINDS = {"layer_kept": _layer, "outside": _outside, "fragmentation": _fragmentation, "second_step": _second_step}
