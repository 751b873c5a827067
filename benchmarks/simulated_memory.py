"""Compares the simulated cluster's memory with measurements, none of which it is fitted to.

    python -m benchmarks.simulated_memory [--facts DIR]

Measured: peaks of Megatron-LM's functional tests on real GPUs (`golden_runs.csv`), of the last pipeline stage; the
breakdown and savings of DeepSeek-V3 (arXiv 2603.07685 tables 3 and 4); peaks of other published runs. In addition, as a
sanity check only, the estimate's peaks of hand-tuned recipes (`tuned_recipes.json`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.golden_runs import GoldenRun, golden_runs
from benchmarks.places import DATA, data_file
from benchmarks.published_memory import GB_TO_GIB, LOW_MOMENTS, MIDDLE, deepseek_v3, measured_runs
from tests.trainer.recipe.tuned_recipes import recipe_of_row
from trainer.engines.simulated.memory import SimulatedMemory, simulate_memory
from trainer.engines.simulated.memory.result import RankMemory
from trainer.estimate.memory.estimate import estimate_memory
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine

GIB = 2.0**30
# without fragmentation, which torch's figures do not include
MACHINE = Machine.model_validate({"memory": {"fragmentation": 0.0}})
EXPERT_OUTPUTS = 26.3  # GiB of expert outputs, which table 3 counts and the memory-efficient permutation drops
EVERY = 3  # one of so many tuned recipes is used
WORST = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facts", type=Path, default=DATA, help="the folder of the tables; default benchmarks/data")
    facts = parser.parse_args().facts
    measured, tuned = (data_file(name, folder=facts) for name in ("golden_runs.csv", "tuned_recipes.json"))
    _measured(list(golden_runs(measured)))
    _deepseek()
    _published()
    _estimated(json.loads(tuned.read_text(encoding="utf-8"))[::EVERY])


def _play(recipe: Recipe) -> SimulatedMemory:
    return simulate_memory(recipe, MACHINE)


def _measured(runs: Iterable[GoldenRun]) -> None:
    """Prints the table of cases with experts, allocated peak and allocated between steps, and errors over all runs."""
    errors: dict[bool, list[float]] = defaultdict(list)
    cases: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for run in runs:
        if run.recipe is None:
            continue
        found = _play(run.recipe)
        peak, resting = found.allocated_gib[-1], found.resting_gib[-1]
        errors[run.is_moe].append(peak / (run.peak_bytes / GIB) - 1)
        if run.is_moe:
            name = f"{run.case} ({run.recipe.world_size} GPUs)"
            cases[name].append((run.peak_bytes / GIB, peak, run.resting_bytes / GIB, resting))
    print("Measured runs, GiB: peak, simulated, error, between steps, simulated; runs of a case are averaged")
    for name, figures in sorted(cases.items()):
        peak, simulated, resting, rests = (fmean(column) for column in zip(*figures, strict=True))
        print(f"  {peak:8.2f} {simulated:8.2f} {simulated / peak - 1:+7.1%} {resting:8.2f} {rests:8.2f}  {name}")
    for is_moe, found_errors in sorted(errors.items(), reverse=True):
        print(f"  {'with' if is_moe else 'without'} experts: {_spread(found_errors)}")


def _spread(errors: Sequence[float]) -> str:
    sizes = np.abs(errors)
    median, most = np.median(sizes), np.percentile(sizes, 90)
    return f"{len(errors)} runs, |error| median {median:.1%}, p90 {most:.1%}, largest {sizes.max():.1%}"


def _deepseek() -> None:
    """Prints the memory of the middle pipeline rank of PP 4, VPP 4, EP 64 on 256 GPUs."""
    bf16, fp8 = deepseek_v3(), deepseek_v3(precision="mxfp8")
    rank = _middle(bf16)
    state = rank.state
    rows = [
        ("weights and gradients", 36.4, (state.weights + state.gradients) / GIB),
        ("master weights and optimizer", 32.1, (state.masters + state.moments) / GIB),
        ("activations, expert outputs kept", 131.0, rank.passes / GIB + EXPERT_OUTPUTS),
        ("total", 199.5, (state.all + rank.passes) / GIB + EXPERT_OUTPUTS),
        ("saved by FP8 activations", 16.0, (rank.passes - _middle(fp8).passes) / GIB),
        ("saved by BF16 moments (10 to 12)", 11.0, (state.all - _middle(bf16.replace(LOW_MOMENTS)).state.all) / GIB),
        ("saved by recompute of mla_up_proj", 30.4, _saved(fp8, "mla_up_proj")),
        ("saved by recompute of moe_act", 3.8, _saved(fp8, "moe_act")),
        ("saved by recompute of layernorm", 8.2, _saved(fp8, "layernorm")),
        ("saved by all three", 42.4, _saved(fp8, "mla_up_proj", "moe_act", "layernorm")),
        ("cost of partial CUDA graphs", 7.0, _graphs(bf16)),
    ]
    print("DeepSeek-V3 on 256 GPUs, GiB: published, simulated, error")
    _table(rows)


def _middle(recipe: Recipe) -> RankMemory:
    return _play(recipe).ranks[MIDDLE]


def _saved(recipe: Recipe, *modules: str) -> float:
    knobs = {"recompute_granularity": "selective", "recompute_modules": modules}
    return (_middle(recipe).passes - _middle(recipe.replace(knobs)).passes) / GIB


def _graphs(recipe: Recipe) -> float:
    knobs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ("attn", "moe_router")}
    return (_middle(recipe.replace(knobs)).needed - _middle(recipe).needed) / GIB


def _published() -> None:
    rows = [(what, gb * GB_TO_GIB, max(_play(recipe).allocated_gib)) for what, gb, recipe, _ in measured_runs()]
    print("Published peaks, GiB: published, simulated, error; their settings are partly assumed")
    _table(rows)


def _table(rows: Iterable[tuple[str, float, float]]) -> None:
    for what, published, simulated in rows:
        print(f"  {published:8.1f} {simulated:8.1f} {simulated / published - 1:+7.1%}  {what}")


def _estimated(rows: Sequence[dict[str, Any]]) -> None:
    """Compares peaks with those of the estimate, which are not measurements."""
    found, took = list[tuple[float, float, float, str]](), list[float]()
    for row in rows:
        recipe = recipe_of_row(row)
        started = time.process_time()
        simulated = max(_play(recipe).peak_gib)
        took.append(time.process_time() - started)
        estimated = estimate_memory(recipe).peak_gib
        found.append((simulated / estimated - 1, estimated, simulated, row["id"]))
    print("Tuned recipes, GiB: estimated, simulated, difference")
    for difference, estimated, simulated, name in sorted(found, key=lambda each: -abs(each[0]))[:WORST]:
        print(f"  {estimated:8.1f} {simulated:8.1f} {difference:+7.1%}  {name}")
    print(f"  all: {_spread([each[0] for each in found])}; {1e3 * max(took):.1f} ms at most")


if __name__ == "__main__":
    main()
