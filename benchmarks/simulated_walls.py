"""Checks that `diagnose` names the real wall: on simulated clusters, compared with the gain of removing each wall.

    python -m benchmarks.simulated_walls [--recipes 200] [--seed N]

A wall is removed in the simulation: links without time; a host without time; GEMMs and attention at the peak of
their precision whatever their shape, and no other kernels; no recompute and no offload. The wall whose removal gives
most is the true one; within 2 points of the step either of two is right.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random

from rich.console import Console

from analyzers import analyze
from analyzers.diagnosis import Wall
from benchmarks.drawn_recipes import draw_recipe
from trainer.burst import Burst
from trainer.engines.simulated import SimulatedEngine
from trainer.engines.simulated.step import Simulation
from trainer.recipe import Recipe
from trainer.recipe.load_machine import load_machine, packaged_machines
from trainer.recipe.machine import Compute, Host, Links, Machine, Memory, Noise

EITHER = 0.02  # fraction of the step: of two walls that differ by less, either is right
SURE = 0.05
ENDLESS_GIB = 1e5
NOT_WRONG = "no wall is named where two are close, or where bubble or waiting is as large"
NO_LINKS = Links(nvlink=100.0, network=100.0, latency=0.01, half_message=0.01)


@dataclass(frozen=True, kw_only=True)
class Case:
    machine: str
    truth: dict[str, float]  # share of the step that the removal of each wall saves
    named: str
    margin: float
    because: str

    @property
    def best(self) -> float:
        return max(self.truth.values())

    @property
    def right(self) -> bool:
        return self.named != Wall.UNDETERMINED and self.truth[self.named] >= self.best - EITHER

    @property
    def wrong(self) -> bool:
        return self.named != Wall.UNDETERMINED and not self.right


def removals(recipe: Recipe, machine: Machine) -> dict[str, float]:
    """Returns the fraction of the step that removing each wall saves."""
    step = Simulation(recipe, machine).step_us
    without = {
        Wall.COMMUNICATION: (recipe, machine.model_copy(update={"links": NO_LINKS})),
        Wall.HOST: (recipe, machine.model_copy(update={"host": Host(launch=0.01, jitter=0.0)})),
        Wall.COMPUTE: (recipe, machine.model_copy(update={"compute": ideal_compute(recipe, machine)})),
        Wall.MEMORY: (without_memory_wall(recipe), machine.model_copy(update={"memory": Memory()})),
    }
    return {str(wall): 1 - Simulation(*changed).step_us / step for wall, changed in without.items()}


def ideal_compute(recipe: Recipe, machine: Machine) -> Compute:
    """Returns rates with GEMMs and attention at the peak, and memory-bound kernels in no time."""
    rates = Simulation(recipe, machine).rates
    faster = rates.attainable_tflops * machine.compute.dense_gemm / rates.dense_tflops
    return Compute(
        dense_gemm=faster,
        grouped_gemm=faster,
        half_rows=0.01,
        half_width=0.01,
        attention=rates.attainable_tflops / rates.attention_tflops,
        memory_bound=100.0,
        quantize=0.01,
    )


def without_memory_wall(recipe: Recipe) -> Recipe:
    return recipe.replace(
        {
            "recompute_granularity": None,
            "recompute_method": None,
            "recompute_num_layers": None,
            "recompute_modules": None,
            "fine_grained_activation_offloading": False,
            "cpu_offloading": False,
            "optimizer_cpu_offload": False,
        }
    )


def judged(seed: int) -> Case:
    rng = Random(seed)
    name = rng.choice(packaged_machines())
    machine = load_machine(name).model_copy(update={"noise": Noise(step=0.0, burst=0.0), "faults": ()})
    recipe = _everything_fits(draw_recipe(rng), machine)
    with tempfile.TemporaryDirectory() as folder:
        SimulatedEngine(Path(folder)).run(Burst(number=0, recipe=recipe, folder=Path(folder) / "0000"))
        found = analyze([Path(folder) / "0000"]).diagnosis
    return Case(
        machine=name, truth=removals(recipe, machine), named=str(found.wall), margin=found.margin, because=found.because
    )


def _everything_fits(recipe: Recipe, machine: Machine) -> Recipe:
    burst = recipe.burst.model_copy(update={"engine": "simulated", "machine": machine})
    cluster = recipe.cluster.model_copy(update={"memory_gib": ENDLESS_GIB})
    return recipe.model_copy(update={"burst": burst, "cluster": cluster})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=31_000_000)
    asked = parser.parse_args()
    with get_context("fork").Pool(2) as pool:
        cases = pool.map(judged, range(asked.seed, asked.seed + asked.recipes), chunksize=4)
    console = Console(width=150)
    named = [case for case in cases if case.named != Wall.UNDETERMINED]
    right = sum(case.right for case in named)
    console.print(f"{len(cases)} recipes, {len(named)} with a wall named, {right} of them right")
    sure = [case for case in named if case.margin >= SURE]
    console.print(
        f"with a margin of {SURE:.0%} of the step: {len(sure)}, {sum(case.right for case in sure)} of them right"
    )
    console.print(f"undetermined: {len(cases) - len(named)}; {NOT_WRONG}", highlight=False)
    for case in cases:
        if case.wrong:
            truth = ", ".join(f"{wall} {share:.1%}" for wall, share in case.truth.items())
            console.print(f"  {case.machine}: named {case.named}; true: {truth}; {case.because}", highlight=False)


if __name__ == "__main__":
    main()
