"""Measures `plan`: estimates per second on one core, a whole plan of 1,024 and 16,384 GPUs, and the memory it needs.

    python -m benchmarks.plan_speed [--markdown]

Each figure is measured in a process of its own, with one thread, so that its peak memory is its own. For scale:
SimuMax, which simulates one layout at a time, reports 1.0 to 1.6 s for one estimate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from trainer.recipe import Recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.source import Source

MODEL, GPU = "deepseek-v3", "h100"
PEER_ESTIMATES_A_S = "0.6 to 1"  # SimuMax: 1.0–1.6 s for one
SINGLE_ESTIMATES = 200  # estimates of one recipe that are timed


def recipe_of(gpus: int) -> Recipe:
    """Returns DeepSeek-V3 in FP8 with 8 sequences of 4K per GPU."""
    data = {
        "name": f"{MODEL}-{gpus}x{GPU}",
        "model": MODEL,
        "cluster": {"gpu": GPU, "nodes": gpus // 8},
        "training": {"seq_length": 4096, "global_batch_size": 8 * gpus, "precision": "fp8_blockwise"},
    }
    return recipe_from(Source(name="benchmark", data=data))


def plan_of(gpus: int) -> dict[str, float]:
    """Measures a whole plan as the command makes it, reasons included."""
    from autotune.plan.document import planned

    started = time.perf_counter()
    plan = planned(recipe_of(gpus), top=20)
    elapsed = time.perf_counter() - started
    return _with_memory({"seconds": elapsed, "estimates": plan.found.estimated, "layouts": plan.found.legal.sum()})


def rate() -> dict[str, float]:
    """Measures estimates per second of memory and time over a table of layouts, and one recipe at a time."""
    from trainer.estimate.memory.estimate import estimate_memory
    from trainer.estimate.plan.search import estimated
    from trainer.estimate.plan.space import foundation, layouts
    from trainer.estimate.time.estimate import estimate_time

    base = recipe_of(1024)
    table = layouts(foundation(base))
    estimated(table.take(slice(0, 100)))
    started = time.perf_counter()
    estimated(table)
    elapsed = time.perf_counter() - started
    single = []
    for _ in range(SINGLE_ESTIMATES):
        at = time.perf_counter()
        estimate_memory(base)
        estimate_time(base)
        single.append(time.perf_counter() - at)
    one_ms = 1e3 * statistics.median(single)
    return _with_memory({"seconds": elapsed, "estimates": table.count, "one_ms": one_ms})


def _with_memory(figures: dict[str, Any]) -> dict[str, float]:
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {name: float(value) for name, value in figures.items()} | {"peak_gb": peak_gb}


TASKS: dict[str, Callable[[], dict[str, float]]] = {
    "rate": rate,
    "1024": lambda: plan_of(1024),
    "16384": lambda: plan_of(16384),
}


def measured(task: str) -> dict[str, float]:
    """Returns the task's figures, measured in a separate process."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "benchmarks.plan_speed", "--task", task]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **threads})
    return dict(json.loads(run.stdout))


def rows() -> list[tuple[str, str, str]]:
    """Returns the rows of the table: (figure, measured value, target)."""
    over, small, large = (measured(task) for task in TASKS)
    rate_s = over["estimates"] / over["seconds"]
    peak_gb = max(over["peak_gb"], small["peak_gb"], large["peak_gb"])
    return [
        ("estimates a second on one core, over a table", f"{rate_s:,.0f} (SimuMax: {PEER_ESTIMATES_A_S})", "≥ 5,000"),
        ("one recipe's memory and time", f"{over['one_ms']:.1f} ms", "–"),
        ("`plan`, DeepSeek-V3 on 1,024 H100", f"{small['seconds']:.1f} s, {small['layouts']:,.0f} legal layouts, "
         f"{small['estimates']:,.0f} estimates", "≤ 5 s"),
        ("`plan`, DeepSeek-V3 on 16,384 H100", f"{large['seconds']:.1f} s, {large['layouts']:,.0f} legal layouts, "
         f"{large['estimates']:,.0f} estimates", "≤ 30 s"),
        ("peak memory of any of these processes", f"{peak_gb:.2f} GB", "≤ 1 GB"),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="as rows of a table")
    parser.add_argument("--task", choices=list(TASKS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(TASKS[options.task]()))
        return
    for figure, value, target in rows():
        print(f"| {figure} | {value} | {target} |" if options.markdown else f"{figure}: {value} (target {target})")


if __name__ == "__main__":
    main()
