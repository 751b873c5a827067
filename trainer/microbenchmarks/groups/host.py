"""Plans rows on the host's work: launches of a layer, one launch with and without the profiler, a synchronization, a
garbage collection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.microbenchmarks.group import Group
from trainer.microbenchmarks.row import Row
from trainer.microbenchmarks.shapes import alone, expert_sizes
from trainer.recipe import Recipe


def rows(recipe: Recipe) -> list[Row]:
    """Returns rows of the launches of a dense layer and of layers with few and with many experts, and of single host
    operations."""
    return [*_layers(recipe), *_single(recipe)]


def _layers(recipe: Recipe) -> Iterator[Row]:
    model = recipe.architecture
    if model.num_moe_experts is None or not all(model.moe_layers):
        yield _row("host_dense", "launches of a dense layer", sizes={"moe": 0.0}, changes=alone(recipe))
    sizes = expert_sizes(recipe)
    kinds = {size: kind for kind, size in (("host_few", sizes[-1]), ("host_many", sizes[0]))} if sizes else {}
    for ep, kind in kinds.items():
        held = (model.num_moe_experts or 0) // ep
        changes = alone(recipe, expert_model_parallel_size=ep)
        yield _row(kind, f"launches of a MoE layer, {held} experts", sizes={"moe": 1.0}, changes=changes)


def _single(recipe: Recipe) -> Iterator[Row]:
    if not recipe.hardware.is_cpu:
        yield _row("launch", "one launch")
        yield _row("launch_profiled", "one launch under the profiler")
        yield _row("sync", "synchronisation of host and device")
    yield _row("garbage", "collection of garbage")


def _row(kind: str, name: str, **more: Any) -> Row:
    return Row(group="host", kind=kind, name=name, unit="us", **more)


GROUP = Group(name="host", order=2, rows=rows)
