"""Plans rows on the software that recipes ask for and that may not work on this cluster."""

from __future__ import annotations

from trainer.microbenchmarks.group import Group
from trainer.microbenchmarks.row import Row
from trainer.microbenchmarks.shapes import dispatchers
from trainer.recipe import Recipe

ON_GPUS = {
    "transformer_engine": "Transformer Engine",
    "grouped_gemm": "grouped GEMM in one kernel",
    "fp8": "FP8 products",
    "graphs": "CUDA graphs",
    "nvml": "NVML",
    "nsys": "Nsight Systems",
}


def rows(recipe: Recipe) -> list[Row]:
    """Returns one row per piece of software; its measured figure is 1 if the software works."""
    found = {} if recipe.hardware.is_cpu else dict(ON_GPUS)
    found |= {name: f"dispatcher {name}" for name in dispatchers(recipe) if name not in ("alltoall", "allgather")}
    found |= {"profiler": "torch profiler with ranges", "megatron": "Megatron-Core"}
    return [Row(group="works", kind=kind, name=name, unit="works") for kind, name in found.items()]


GROUP = Group(name="works", order=5, rows=rows)
