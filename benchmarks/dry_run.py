"""Measures dry runs: their duration, and how far weights, gradients and optimizer of real Megatron-Core differ from the
estimate.

`python -m benchmarks.dry_run` prints one row per layout, at the world sizes of production runs; nothing here needs a
GPU. Seconds are those of the command's child process from its start, imports included.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

from trainer.dry_run import STATE, DryRun, dry_run, hottest_rank
from trainer.recipe import Recipe
from trainer.recipe.rules.examples import FULL

SHARDED = {"use_distributed_optimizer": True, "moe_grouped_gemm": True}
WHOLE = {"moe_grouped_gemm": True}
AWARE = SHARDED | {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bfloat16", "exp_avg_sq_dtype": "bfloat16"}
SELECTIVE = {"recompute_granularity": "selective", "recompute_modules": ("mla_up_proj", "moe_act")}
# model, ranks, (tp, pp, cp, ep, etp, vpp), other knobs
LAYOUTS: tuple[tuple[str, int, tuple[int, int, int, int, int, int | None], dict[str, Any]], ...] = (
    ("deepseek-v3", 1024, (1, 16, 1, 64, 1, None),
     SHARDED | {"num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 1}),
    ("deepseek-v3", 1024, (1, 8, 1, 64, 1, 4),
     SHARDED | SELECTIVE | {"pipeline_model_parallel_layout": "Et*3|(tt|)*28t|t|mL"}),
    ("deepseek-v3", 1024, (2, 16, 1, 32, 1, 2), AWARE | {"pipeline_model_parallel_layout": "Et*3|(tt|)*29m|L"}),
    ("deepseek-v3", 16384, (1, 16, 1, 64, 1, None),
     AWARE | {"num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 1}),
    ("qwen3-235b-a22b", 1024, (2, 8, 1, 32, 1, None),
     SHARDED | {"num_layers_in_first_pipeline_stage": 11, "num_layers_in_last_pipeline_stage": 11}),
    ("qwen3-235b-a22b", 1024, (4, 2, 2, 64, 2, None), SHARDED | FULL),
    ("qwen3-30b-a3b", 64, (1, 1, 1, 8, 1, None), SHARDED),
    ("qwen3-30b-a3b", 64, (2, 2, 2, 4, 2, 3), WHOLE),
    ("mixtral-8x22b", 256, (2, 8, 1, 8, 1, 7), SHARDED),
    ("mixtral-8x7b", 64, (4, 2, 2, 2, 4, None), WHOLE),
    ("gpt-oss-120b", 64, (2, 4, 1, 8, 1, None), SHARDED),
    ("kimi-k2", 1024, (1, 16, 1, 64, 1, None),
     AWARE | {"num_layers_in_first_pipeline_stage": 3, "num_layers_in_last_pipeline_stage": 2}),
)  # fmt: skip
SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "virtual_pipeline_model_parallel_size",
)


def recipe_of(model: str, ranks: int, sizes: tuple[int | None, ...], knobs: dict[str, Any]) -> Recipe:
    document = {
        "name": model,
        "model": model,
        "cluster": {"gpu": "h100", "nodes": ranks // 8, "gpus_per_node": 8},
        "training": {"seq_length": 4096, "global_batch_size": 8 * ranks},
    }
    given = dict(zip(SIZES, sizes, strict=True))
    return Recipe.model_validate(document).replace({**given, "sequence_parallel": (sizes[0] or 1) > 1, **knobs})


def main() -> int:
    print(f"{'model':16} {'ranks':>6} {'tp,pp,cp,ep,etp,vpp':20} {'optimizer':9} rank  dry run GiB  ours GiB  off %  s")
    worst_pct = worst_s = 0.0
    for model, ranks, sizes, knobs in LAYOUTS:
        recipe = recipe_of(model, ranks, sizes, knobs)
        start = time.perf_counter()
        found = dry_run(recipe, pp_rank=hottest_rank(recipe))
        took_s = time.perf_counter() - start
        print(_line(recipe, found, sizes, took_s), flush=True)
        if found.difference_pct is None:
            print(f"  ended early: {found.refused or found.stopped}")
            return 1
        worst_pct, worst_s = max(worst_pct, abs(found.difference_pct)), max(worst_s, took_s)
    peak_gib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"{len(LAYOUTS)} layouts: at worst {worst_pct:.3f} % off (target 0.5), {worst_s:.1f} s (target 60), ", end="")
    print(f"resident memory {peak_gib:.2f} GiB")
    return 0


def _line(recipe: Recipe, found: DryRun, sizes: tuple[int | None, ...], took_s: float) -> str:
    kind = "aware" if recipe.knob("use_precision_aware_optimizer") else "sharded"
    kind = kind if recipe.knob("use_distributed_optimizer") else "whole"
    real, ours = (sum(parts.get(name, 0.0) for name in STATE) for parts in (found.by_part_gib, found.closed_form_gib))
    layout = ",".join("-" if size is None else str(size) for size in sizes)
    off = 100 * (real / ours - 1)
    return (
        f"{recipe.name:16} {recipe.world_size:6} {layout:20} {kind:9} {found.pp_rank:4}  {real:11.3f}  {ours:8.3f}  "
        f"{off:+.3f}  {took_s:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
