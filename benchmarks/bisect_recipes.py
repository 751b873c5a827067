"""Bisects recipes on drawn simulated clusters: real knobs as regressions, through the product's own command loop.

    python -m benchmarks.bisect_recipes

A case is a scenario of benchmarks.policy on a machine drawn for it, with 2 % of noise per burst. B has 1 to 3 changes
of knobs that cost at least 5 % there, both alone on A and as the last one to B, and several that cost less than 1 %, by
the simulation without noise, which the bisection does not see. A verdict is right if its culprits are the planted
changes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from analyzers import analyze
from autotune.bisect.document import Bisected, document_of
from autotune.bisect.loop import BisectLoop, Problem
from autotune.tuning import study as studies
from autotune.tuning.bench import Bench
from benchmarks.bisect import Result, figures
from benchmarks.policy.scenarios import drawn_machine, scenarios
from policies.bisect.differences import ends_of
from trainer.engines.simulated import SimulatedEngine, true_throughput
from trainer.legality import findings_of
from trainer.recipe import Recipe
from trainer.recipe.rules.check import errors_of

CASES, BUDGET, NOISE = 40, 42, 0.02
# additional time per token of a guilty change (at least) and of one without effect (at most), as fractions
GUILTY, INERT = 0.05, 0.01
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
CHANGES: tuple[dict[str, Any], ...] = (
    FULL | {"recompute_modules": None},
    *({knob: False} for knob in ("overlap_grad_reduce", "overlap_param_gather", "moe_permute_fusion")),
    *({knob: False} for knob in ("moe_router_fusion", "cross_entropy_loss_fusion", "moe_grouped_gemm")),
    *({knob: True} for knob in ("moe_shared_expert_overlap", "manual_gc", "average_in_collective")),
    {"cuda_graph_impl": "none", "cuda_graph_scope": None},
    {"moe_token_dispatcher_type": "allgather"},
    {"CUDA_DEVICE_MAX_CONNECTIONS": 1},
    {"grad_reduce_in_fp32": False},
    {"moe_router_dtype": None},
    {"TORCH_NCCL_AVOID_RECORD_STREAMS": 1},
    {"NCCL_NVLS_ENABLE": 1},
    {"attention_backend": "unfused"},
    {"micro_batch_size": 2},
)


def drawn_ends(seed: int) -> tuple[Recipe, Recipe, frozenset[str]] | None:
    """Returns A, B and the knobs that the planted changes moved; None if this draw has no regression that each of them
    causes."""
    rng = random.Random(f"bisect recipes {seed}")
    scenario = rng.choice(scenarios())
    machine = drawn_machine(1000 + seed)
    machine = machine.model_copy(update={"noise": machine.noise.model_copy(update={"burst": NOISE}), "faults": ()})
    burst = scenario.recipe.burst.model_copy(update={"machine": machine, "trace_steps": 0, "measure_steps": 4})
    a = scenario.recipe.model_copy(update={"burst": burst})
    base = true_throughput(a, machine)
    if not base:
        return None
    costs = {}
    for at, change in enumerate(CHANGES):
        moved = a.replace(change)
        rate = None if errors_of(moved) or moved.digest() == a.digest() else true_throughput(moved, machine)
        if rate:
            costs[at] = base / rate - 1
    guilty = [at for at, cost in costs.items() if cost >= GUILTY]
    planted = rng.sample(guilty, min(len(guilty), rng.randint(1, 3)))
    inert = [at for at, cost in costs.items() if abs(cost) < INERT]
    b = a
    for at in (*planted, *inert):
        moved = b.replace(CHANGES[at])
        b = b if errors_of(moved) else moved
    rate = true_throughput(b, machine)
    if not planted or not rate or rate > base / (1 + GUILTY):
        return None
    for at in planted:  # a change whose cost others hide is slow alone but not in B: neither answer would be right
        back = b.replace({knob: a.knob(knob) for knob in CHANGES[at]})
        without = None if errors_of(back) else true_throughput(back, machine)
        if not without or without < rate * (1 + GUILTY):
            return None
    knobs = frozenset(knob for at in planted for knob in CHANGES[at] if a.knob(knob) != b.knob(knob))
    return a, b, knobs


def bisected(seed: int, a: Recipe, b: Recipe) -> tuple[Problem, Bisected]:
    """Returns the problem, and the document of its bisection, which ran to its end."""
    problem = Problem(ends_of(a, b))
    with TemporaryDirectory(prefix="bisect-") as name:
        folder = Path(name) / "study"
        study = studies.create(
            a, given=b"", folder=folder, seed=seed, clock=time.time, listener=lambda *_: None, other=problem.ends.b
        )
        bench = Bench(
            journal=study.journal,
            engine=SimulatedEngine(folder / "engine"),
            bursts=study.bursts,
            budget=BUDGET,
            seed=seed,
            check=findings_of,
            analyze=analyze,
            clock=time.time,
        )
        BisectLoop(problem=problem, bench=bench).run()
        found = document_of(study.journal.whole, problem)
        study.close()
    return problem, found


def results(cases: int, *, show: bool) -> Iterator[tuple[int, Result]]:
    """Yields the number of differences and the result of each case."""
    seed, done = 0, 0
    while done < cases:
        seed += 1
        if (ends := drawn_ends(seed)) is None:
            continue
        done += 1
        a, b, knobs = ends
        problem, found = bisected(seed, a, b)
        changed = {each.name: set(each.changes) for each in problem.ends.differences}
        named = [changed[name] for each in found.culprits for name in each.differences]
        right = all(each & knobs for each in named) and knobs <= set().union(*named)
        result = Result(bursts=len(found.bursts) - 2, right=right, sure=found.answered == "culprits")
        if show and not right:
            print(f"{seed}: planted {sorted(knobs)}, found {[sorted(each) for each in named]}, {found.answered}")
        yield len(changed), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES, help="drawn pairs of recipes")
    parser.add_argument("--show", action="store_true", help="print the cases that are not right")
    given = parser.parse_args()
    found = list(results(given.cases, show=given.show))
    counts = sorted(count for count, _ in found)
    print(
        f"{len(found)} pairs of recipes with {counts[0]} to {counts[-1]} differences, "
        "bursts without the first of each end"
    )
    print(figures([result for _, result in found]))


if __name__ == "__main__":
    main()
