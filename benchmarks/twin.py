"""Compares a twin's predictions with the truth: for recipes that its study never ran, other models, more nodes.

    python -m benchmarks.twin [--machines 10] [--recipes 200] [--bursts 10]

On every drawn machine the product runs a study of ten bursts and writes a twin of it; for other recipes of the space
(the study's model and others, on as many nodes, 4 and 16 times as many) the true step, which is the simulation on the
drawn machine, is compared with that of the tables, of `estimate --machine`, and of a simulation on the twin. A true
step has no noise, and is counted whether the recipe fits or not. The simulation on the twin has the right formulas,
which no prediction of a real cluster has: `python -m benchmarks.simulation_accuracy` measures their error there.
`estimate` shares no formula with the truth.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from autotune.twin.learning import Twin, twin_of_study
from benchmarks.policy.ground import Ground
from benchmarks.policy.scenarios import Scenario, drawn_machine, scenarios
from benchmarks.policy.tuned import run_policy
from policies.surrogate.learned import learned_cluster
from trainer.engines.simulated import simulated_step_s
from trainer.estimate.learned import TABLES
from trainer.estimate.plan.choices import broken, written_out
from trainer.estimate.plan.search import search
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine

STARTS = (  # the study's recipe, by the machine of its row in scenarios.csv: models, GPUs and precisions differ
    *(
        "drawn-4",
        "drawn-6",
        "drawn-11",
        "drawn-12",
        "drawn-7",
        "drawn-9",
        "drawn-16",
        "drawn-18",
        "drawn-23",
        "drawn-8",
    ),
)
FIRST_SEED = 500  # first seed of the machines, none of which benchmarks.policy has
DISTANCES = (1.6, 2.5)  # largest ratio of a machine's key to the published one, alternating
MODELS = (
    *("qwen3-30b-a3b", "mixtral-8x7b", "mixtral-8x22b", "deepseek-v3", "gpt-oss-120b", "qwen3-235b-a22b"),
    *("glm-4.5-air", "moonlight-16b-a3b", "qwen2-57b-a14b", "glm-4.5", "kimi-k2", "gpt-oss-20b"),
)
TIMES = (1, 4, 16)  # numbers of nodes, over that of the study
OTHER_MODELS = 5
SEQ_LENGTHS = (4096, 8192)
MAX_BATCH = 16384
KEPT_KNOBS = ("moe_router_dtype", "use_distributed_optimizer", "moe_grouped_gemm")
EVERY = 5  # the interval is computed for one of so many recipes, since it takes one estimate per factor
TARGET = {"median": 0.05, "p90": 0.12}


@dataclass(frozen=True, kw_only=True)
class UntriedRecipe:
    """Recipe that the study did not run, and its true step, seconds; `kind` says in what it differs from the
    study's."""

    kind: str
    recipe: Recipe
    true_s: float


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Log ratios of predicted over true steps by predictor, one entry per recipe; `inside`: whether the interval of
    `estimate --machine` contains the true step, for every EVERY-th recipe."""

    kinds: tuple[str, ...]
    by_predictor: dict[str, tuple[float, ...]]
    inside: tuple[bool, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=10)
    parser.add_argument("--recipes", type=int, default=200, help="a machine")
    parser.add_argument("--bursts", type=int, default=10, help="of a study, after those of its base")
    parser.add_argument("--first", type=int, default=0, help="machines of earlier runs to leave out")
    asked = parser.parse_args()
    found = []
    for place in range(asked.first, asked.first + asked.machines):
        started = time.process_time()
        scenario, far = _scenario(place)
        twin = _twin(scenario, asked.bursts)
        others = list(_others(scenario, asked.recipes))
        errors = _errors(others, twin, scenario.machine)
        found.append(errors)
        print(
            f"\n{scenario.name}, keys up to {far} x, {len(others)} recipes, {time.process_time() - started:.0f} CPU s"
        )
        _print_keys(twin, scenario.machine)
        _print(errors)
    print(f"\nall {len(found)} machines (target: median {TARGET['median']:.0%}, p90 {TARGET['p90']:.0%})")
    _print(_together(found))


def _scenario(place: int) -> tuple[Scenario, float]:
    """Returns a study's start on its own machine, and how far the machine's keys are from the published ones."""
    start = next(each for each in scenarios() if each.machine.name == STARTS[place % len(STARTS)])
    far, seed = DISTANCES[place % len(DISTANCES)], FIRST_SEED + place
    machine = drawn_machine(seed, far=math.log(far))
    burst = start.recipe.burst.model_copy(update={"machine": machine})
    name = f"{start.name.rsplit(' ', 1)[0]} {machine.name}"
    return replace(start, name=name, recipe=start.recipe.model_copy(update={"burst": burst}), seed=seed), far


def _twin(scenario: Scenario, bursts: int) -> Twin:
    with TemporaryDirectory(prefix="twin-") as folder:
        run_policy(Ground(scenario), Path(folder) / "study", bursts)
        return twin_of_study(Path(folder) / "study", name="twin")


def _others(scenario: Scenario, count: int) -> Iterator[UntriedRecipe]:
    """Draws recipes evenly from the finals of `plan`: of the study's model and others, on as many nodes and more."""
    rng = random.Random(f"others of {scenario.name}")
    own = scenario.recipe
    more = zip(rng.sample(MODELS, OTHER_MODELS), rng.choices(TIMES, k=OTHER_MODELS), strict=True)
    kinds = [(None, times) for times in TIMES] + list(more)
    each = math.ceil(count / len(kinds))
    for model, times in kinds:
        base = _base(own, model, times, rng)
        found = search(base)
        rows = np.flatnonzero(found.finals.fits).tolist()
        kind = f"{'another' if model else 'its own'} model, {times} x the nodes"
        kept = 0
        for row in rng.sample(rows, len(rows)):
            recipe = written_out(found.finals.candidates.recipe(row))
            if kept < each and not broken(recipe, found.unavoidable):
                kept += 1
                yield UntriedRecipe(kind=kind, recipe=recipe, true_s=simulated_step_s(recipe, scenario.machine))
            if kept == each:
                break


def _base(own: Recipe, model: str | None, times: int, rng: random.Random) -> Recipe:
    """Returns the recipe whose space is searched: the study's start, or another model with the knobs they share."""
    training: dict[str, Any] = own.training.model_dump()
    training["global_batch_size"] = min(own.training.global_batch_size * times, MAX_BATCH)
    knobs = {name: value for name, value in own.knobs.items() if name != "pipeline_model_parallel_layout"}
    if model is not None:
        training |= {"micro_batch_size": 1, "seq_length": rng.choice((own.training.seq_length, *SEQ_LENGTHS))}
        knobs = {name: knobs[name] for name in KEPT_KNOBS if name in knobs}
    return Recipe.model_validate(
        {
            "name": "other",
            "model": model or own.model,
            "cluster": {"gpu": own.cluster.gpu, "nodes": own.cluster.nodes * times},
            "training": training,
            "knobs": knobs,
        }
    )


def _errors(others: Sequence[UntriedRecipe], twin: Twin, true: Machine) -> Errors:
    assert twin.file.estimate is not None
    cluster = learned_cluster(twin.file.estimate, name="twin")
    without_ends = replace(cluster, ends=())
    logs: dict[str, list[float]] = defaultdict(list)
    inside = []
    for place, other in enumerate(others):
        asked = place % EVERY == 0
        estimate = estimate_time(other.recipe, learned=cluster if asked else without_ends)
        steps = {
            "tables": estimate_time(other.recipe, learned=TABLES).step_s,
            "estimate --machine": estimate.step_s,
            "published simulation": simulated_step_s(other.recipe, Machine()),
            "simulated on the twin": simulated_step_s(other.recipe, twin.file.machine),
        }
        for name, step_s in steps.items():
            logs[name].append(math.log(step_s / other.true_s))
        if asked:
            inside.append(abs(other.true_s / estimate.step_s - 1) <= estimate.spread)
    return Errors(
        kinds=tuple(other.kind for other in others),
        by_predictor={name: tuple(found) for name, found in logs.items()},
        inside=tuple(inside),
    )


def _together(found: Sequence[Errors]) -> Errors:
    return Errors(
        kinds=tuple(kind for each in found for kind in each.kinds),
        by_predictor={
            name: tuple(error for each in found for error in each.by_predictor[name]) for name in found[0].by_predictor
        },
        inside=tuple(flag for each in found for flag in each.inside),
    )


def _print(errors: Errors) -> None:
    """Prints median and 90th percentile of the error by predictor: over all recipes, and by kind."""
    names = list(errors.by_predictor)
    print("  " + " " * 34 + "".join(f"{name:>24}" for name in names))
    for kind in ("all", *dict.fromkeys(sorted(errors.kinds))):
        cells = []
        for name in names:
            logs = [
                log for log, own in zip(errors.by_predictor[name], errors.kinds, strict=True) if kind in ("all", own)
            ]
            cells.append(_cell(logs))
        print(f"  {kind:34}" + "".join(f"{cell:>24}" for cell in cells))
    print(f"  the interval of estimate --machine holds the true step in {np.mean(errors.inside):.0%}")


def _cell(logs: Iterable[float]) -> str:
    sizes = np.abs(np.expm1(list(logs)))
    return f"{np.median(sizes):.1%}, p90 {np.quantile(sizes, 0.9):.1%}"


def _print_keys(twin: Twin, true: Machine) -> None:
    """Prints the keys that differ on the machine: the true figure, and the twin's with its interval."""
    moved = true.model_dump(exclude_defaults=True, exclude={"name", "noise"})
    for section, keys in moved.items():
        for name, value in keys.items():
            key = twin.keys.get(f"{section}.{name}")
            said = f"{key.value:.3g} [{key.low:.3g}, {key.high:.3g}]" if key else "not learned"
            print(f"    {section}.{name:14} {value:7.3g}   twin {said}")


if __name__ == "__main__":
    main()
