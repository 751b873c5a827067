"""Plans rows on how communication and compute that run at the same time slow each other down."""

from __future__ import annotations

from trainer.microbenchmarks.group import Group
from trainer.microbenchmarks.row import Row
from trainer.microbenchmarks.shapes import alone, dispatch_sizes
from trainer.recipe import Recipe


def rows(recipe: Recipe) -> list[Row]:
    """Returns rows of a layer overlapped with its expert exchange, and of a gradient reduction overlapped with compute;
    [] on CPUs or for one rank."""
    ep = max(dispatch_sizes(recipe).values(), default=1)
    if recipe.hardware.is_cpu or recipe.world_size == 1:
        return []
    changes = alone(recipe, expert_model_parallel_size=ep, overlap_moe_expert_parallel_comm=True) if ep > 1 else {}
    kinds = {
        "beside": (f"layer with its exchange overlapped, EP {ep}", "us"),
        "contention": ("slowdown of compute during an exchange", "ratio"),
        "slowed": ("slowdown of an exchange during compute", "ratio"),
        "dp_beside": ("relative rate of gradient reduction during compute", "ratio"),
    }
    return [
        Row(group="overlap", kind=kind, name=name, unit=unit, changes=changes)
        for kind, (name, unit) in kinds.items()
        if changes or kind == "dp_beside"
    ]


GROUP = Group(name="overlap", order=4, rows=rows)
