"""Compares `plan` with experts: NVIDIA's tuned layouts and the first one planned for the same task.

    python -m benchmarks.plan_experts [--limit N] [--every]

A cell is a task of `data/tuned_recipes.json`: model, GPU, number of GPUs, precision, sequence, batch. The expert is
the recipe of the cell that is predicted fastest, as it is run (`tuned_runs.py`); ours is planned from it, its other
knobs kept. The expert's layout (TP, PP, VPP, CP, EP, ETP) is judged with the best settings for it; as written it is
judged too if a row records its graphs and overlap (most do not). Each exception lists which parts of the time
decide. Rows are left out whose model or GPU this project replaces by a similar one, or that do not record what
decides memory.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from autotune.looks.recipes import layout_words, setting_words
from benchmarks.places import data_file
from benchmarks.tuned_runs import as_run
from tests.trainer.recipe.tuned_recipes import GPUS, MODELS
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.plan.choices import Choice, choices
from trainer.estimate.plan.search import Search, of_sizes, search
from trainer.estimate.time.estimate import estimate_time
from trainer.estimate.time.parts import STEP_PARTS
from trainer.recipe import Recipe
from trainer.recipe.layout import sizes_of

SAME_MODEL = ("qwen3_vl_235b_a22b", "qwen3_vl_30b_a3b")  # trained as the language model of that name
WRITTEN = ("cuda_graph", "overlap")  # columns that decide the time of a recipe as it is written; most rows lack them
WITHIN = 0.10
TARGET = 0.80


@dataclass(frozen=True, kw_only=True)
class Judged:
    cell: str
    expert: Recipe
    own: Recipe | None  # the expert's layout with the best settings that fit
    ours: Choice
    rate: float  # predicted throughput of the expert's layout over ours; 0 where no setting makes it fit
    as_written: float | None  # rate of the fastest recipe whose row has all of WRITTEN, even if it does not fit
    slower: dict[str, float]  # the two parts that exceed ours most, in shares of our step


def cells() -> dict[str, list[Recipe]]:
    """Returns the distinct recipes of every task, by the task's name."""
    found: dict[str, dict[str, Recipe]] = defaultdict(dict)
    for task, recipe, _ in _recipes():
        found[task][recipe.digest()] = recipe
    return {name: list(recipes.values()) for name, recipes in found.items()}


def recorded() -> set[str]:
    """Returns the digests of recipes whose rows record graphs and overlap."""
    return {recipe.digest() for _, recipe, whole in _recipes() if whole}


@cache
def _recipes() -> list[tuple[str, Recipe, bool]]:
    """Returns (task, recipe, True if its row has all of WRITTEN)."""
    found: list[tuple[str, Recipe, bool]] = []
    for row in json.loads(data_file("tuned_recipes.json").read_text()):
        model = row["model"].lower().lstrip("_")
        if row["gpu"] in GPUS or (model in MODELS and model not in SAME_MODEL):
            continue
        recipe = as_run(row)
        if recipe is not None:
            found.append((_task(row, recipe), recipe, all(row.get(name) for name in WRITTEN)))
    return found


def _task(row: dict[str, Any], recipe: Recipe) -> str:
    model = row["model"].lower().lstrip("_").replace("_", "-").replace("-vl", "")
    training = recipe.training
    return (
        f"{model} {recipe.world_size}x{recipe.cluster.gpu_name} {training.precision} {training.seq_length} "
        f"x {training.global_batch_size}"
    )


def judged(cell: str, recipes: list[Recipe]) -> Judged | None:
    """Returns the judged cell; None if no recipe fits by the upper bound."""
    expert = _fastest(recipes)
    found = search(expert)
    shown = choices(found, 1)
    if not shown or not shown[0].fits:
        return None
    ours, own = shown[0], _best_of_own(found)
    time = estimate_time(own or expert)
    slower = {part: (time.by_part[part] - ours.time_by_part[part]) / ours.step_s for part in STEP_PARTS}
    written = [recipe for recipe in recipes if recipe.digest() in recorded()]
    fastest = estimate_time(_fastest(written)).tokens_per_s_per_gpu if written else None
    return Judged(
        cell=cell,
        expert=expert,
        own=own,
        ours=ours,
        rate=time.tokens_per_s_per_gpu / ours.tokens_per_s_per_gpu if own else 0.0,
        as_written=fastest / ours.tokens_per_s_per_gpu if fastest else None,
        slower=dict(sorted(slower.items(), key=lambda item: -item[1])[:2]),
    )


def _fastest(recipes: list[Recipe]) -> Recipe:
    return max(recipes, key=lambda recipe: estimate_time(recipe).tokens_per_s_per_gpu)


def needed_gib(recipe: Recipe) -> float:
    """Returns the upper bound, GiB, plus the GPU memory outside the allocator."""
    memory = estimate_memory(recipe)
    return memory.upper_gib + memory.outside_gib


def fits(recipe: Recipe) -> bool:
    return needed_gib(recipe) <= (recipe.memory_limit_gib or float("inf"))


def _best_of_own(found: Search) -> Recipe | None:
    """Returns the recipe's own layout with the fastest settings that fit; None if none fits."""
    finals = found.finals
    rows = np.flatnonzero(of_sizes(finals.candidates, sizes_of(found.base)) & finals.eligible)
    return (
        finals.candidates.recipe(int(rows[finals.figures.tokens_per_s_per_gpu[rows].argmax()])) if len(rows) else None
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=None, help="only so many cells, spread over the table")
    parser.add_argument("--every", action="store_true", help="print the cells that agree too")
    options = parser.parse_args()
    tasks = cells()
    names = sorted(tasks)
    chosen = names if options.limit is None else names[:: max(1, len(names) // options.limit)]
    results = [result for name in chosen if (result := judged(name, tasks[name]))]
    for result in sorted(results, key=lambda result: result.rate):
        if options.every or result.rate < 1 - WITHIN:
            report(result)
    agree = sum(result.rate >= 1 - WITHIN for result in results)
    experts = [_fastest(tasks[name]) for name in chosen]
    fit = sum(fits(expert) for expert in experts)
    print(f"{agree} of {len(results)} cells ({agree / len(results):.0%}, target {TARGET:.0%}): the expert's layout is "
          f"predicted within {WITHIN:.0%} of our first")  # fmt: skip
    written = [result.as_written for result in results if result.as_written is not None]
    alike = sum(rate >= 1 - WITHIN for rate in written)
    print(f"{alike} of {len(written)} cells in which a row says graphs and overlap: so is the recipe as it is written")
    print(f"{fit} of {len(experts)} expert recipes fit by our upper bound; {len(chosen) - len(results)} cells in which "
          "nothing does are not counted above")  # fmt: skip
    for expert in experts:
        if not fits(expert):
            print(f"does not fit: {expert.name}: {needed_gib(expert):.0f} of {expert.memory_limit_gib:.0f} GiB")


def report(result: Judged) -> None:
    parts = ", ".join(f"{STEP_PARTS[part]} {share:+.1%}" for part, share in result.slower.items())
    verdict = parts if result.own else f"fits with no setting by our upper bound; the expert's own {parts}"
    written = "not recorded" if result.as_written is None else f"{result.as_written - 1:+.0%}"
    print(f"{result.rate - 1:+.0%} (as written {written})  {result.cell}: {verdict}")
    for whose, recipe in (("expert", result.expert), ("replan", result.own), ("ours", result.ours.recipe)):
        if recipe:
            print(f"      {whose:7}{layout_words(recipe)}; {setting_words(recipe)}")


if __name__ == "__main__":
    main()
