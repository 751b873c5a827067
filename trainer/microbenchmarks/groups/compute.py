"""Plans rows on one rank's device work: the kernels of one layer, forward and backward, by class, and the optimizer
step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.microbenchmarks.group import Group
from trainer.microbenchmarks.row import Row
from trainer.microbenchmarks.shapes import alone, expert_sizes
from trainer.recipe import Recipe

STEPPED, STEPPED_ON_CPU = 1e8, 1e6  # parameters of the optimizer step
WIDE = ("bf16", "fp16", "fp32")
PER_LAYER = {  # kinds measured once, forward and backward of a layer, with their names
    "attention": "attention of a layer",
    "memory_bound": "norms, residuals and activation of a layer",
    "permute": "routing and permutation of a layer",
}


def rows(recipe: Recipe) -> list[Row]:
    """Returns rows of dense GEMMs in every precision of the recipe, grouped GEMMs at several EP sizes, other kernels of
    a layer and the optimizer step."""
    return [*_products(recipe), *_experts(recipe), *_others(recipe)]


def _row(kind: str, name: str, **more: Any) -> Row:
    return Row(group="compute", kind=kind, name=name, unit="us", **more)


def _middle(recipe: Recipe) -> int:
    sizes = expert_sizes(recipe)
    return sizes[len(sizes) // 2] if sizes else 1


def _products(recipe: Recipe) -> Iterator[Row]:
    own = recipe.training.precision
    for precision in dict.fromkeys((own, own if own in WIDE else "bf16")):
        changes = alone(recipe, precision=precision, expert_model_parallel_size=_middle(recipe))
        yield _row("gemm", f"dense GEMMs of a layer, {precision}", changes=changes)


def _experts(recipe: Recipe) -> Iterator[Row]:
    sizes = expert_sizes(recipe)
    shapes = [(size, 1) for size in sizes]
    if sizes and recipe.world_size % (2 * _middle(recipe)) == 0 and not recipe.hardware.is_cpu:
        shapes.append((_middle(recipe), 2))
    for ep, etp in shapes:
        changes = alone(recipe, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
        yield _row("grouped", f"grouped GEMMs of a layer, EP {ep}{f', ETP {etp}' * (etp > 1)}", changes=changes)


def _others(recipe: Recipe) -> Iterator[Row]:
    changes = alone(recipe, expert_model_parallel_size=_middle(recipe))
    for kind, name in PER_LAYER.items():
        if kind != "permute" or recipe.architecture.num_moe_experts:
            yield _row(kind, name, changes=changes)
    if recipe.training.precision not in WIDE and not recipe.hardware.is_cpu:
        yield _row("quantize", f"quantization of a layer, {recipe.training.precision}", changes=changes)
    parameters = STEPPED_ON_CPU if recipe.hardware.is_cpu else STEPPED
    yield _row("optimizer", f"optimizer step of {parameters:.0e} parameters", sizes={"parameters": parameters})


GROUP = Group(name="compute", order=1, rows=rows)
