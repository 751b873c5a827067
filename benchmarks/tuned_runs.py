"""Completes NVIDIA's tuned recipes as they are run: adds settings for which `data/tuned_recipes.json` has no column or
no value.

For all: routing is forced even, as in the tables of throughput that these recipes belong to (`published_runs.csv`,
`routing`), the loss is Transformer Engine's (`rules.csv` R241), gradients are reduced in BF16 unless a row sets
otherwise, and FSDP shards optimizer state, gradients and parameters. Rows of releases before 0.6 and of the model zoo
lack some or all columns of dispatcher, recompute, offload or optimizer: those come from the current recipe for the same
model, GPU and precision that is nearest in layout. If there is none a row is not complete, and its memory is not known.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from benchmarks.places import DATA, data_file
from tests.trainer.recipe.tuned_recipes import recipe_of_row
from trainer.recipe import Recipe

ALL: dict[str, Any] = {
    "moe_router_force_load_balancing": True,
    "cross_entropy_loss_fusion": True,
    "cross_entropy_fusion_impl": "te",
}
INCOMPLETE_COLUMNS = ("dispatcher", "recompute", "offload", "optimizer")  # columns that are empty in some rows
SAME = ("tp", "pp", "vp", "ep")  # sizes that a nearest row should have


def as_run(row: dict[str, Any]) -> Recipe | None:
    """Returns the recipe as run; None if settings that decide memory are recorded neither here nor in a current
    recipe."""
    filled = _filled(row)
    if filled is None:
        return None
    recipe = recipe_of_row(filled)
    knobs = dict(ALL)
    if recipe.knob("grad_reduce_in_fp32") is None:
        knobs["grad_reduce_in_fp32"] = False
    if recipe.knob("use_megatron_fsdp"):
        knobs["data_parallel_sharding_strategy"] = "optim_grads_params"
    return recipe.replace(knobs)


def _filled(row: dict[str, Any]) -> dict[str, Any] | None:
    missing = [name for name in INCOMPLETE_COLUMNS if not row.get(name)]
    if not missing:
        return row
    like = [known for known in _complete() if _kind(known) == _kind(row)]
    if not like:
        return None
    nearest = min(like, key=lambda known: _apart(known, row))
    return row | {name: nearest[name] for name in missing}


@cache
def _complete() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(data_file("tuned_recipes.json", folder=DATA).read_text(encoding="utf-8"))
    return [row for row in rows if all(row.get(name) for name in INCOMPLETE_COLUMNS)]


def _kind(row: dict[str, Any]) -> tuple[str, str, str]:
    model = row["model"].lower().lstrip("_").replace("-", "_")
    return model, row["gpu"], str(row["precision"]).replace("mxfp8", "fp8_mx")


def _apart(known: dict[str, Any], row: dict[str, Any]) -> tuple[int, int]:
    theirs, ours = known["parallelism"], row["parallelism"]
    sizes = sum((theirs[name] or 1) != (ours[name] or 1) for name in SAME)
    return sizes, abs((known["batch"]["mbs"] or 1) - (row["batch"]["mbs"] or 1))
