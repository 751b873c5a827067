"""Compares the tuner's recipe with the best of a small CPU space that is measured whole: prints tuned / best.

    python -m benchmarks.cpu_optimum [--budget 8] [--repeats 3]

Two ranks on this machine, real Megatron-Core. Every legal recipe of `SPACE` is run once on warm ranks; then the
tuner starts from the worst corner, with all other knobs frozen; at the end its recipe and the best few of the table
are run again, interleaved, and compared by median step time; also by the ranks' CPU time, which neighbours on a busy
machine change less. Takes about ten minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.burst import Burst
from trainer.engines import Engine, open_engine
from trainer.recipe import Recipe, load_recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import check

SPACE: dict[str, tuple[Any, ...]] = {
    "expert_model_parallel_size": (1, 2),
    "tensor_model_parallel_size": (1, 2),
    "micro_batch_size": (1, 2, 4, 8),
    "recompute_granularity": (None, "full"),
    "use_distributed_optimizer": (False, True),
}
WORST = {
    "expert_model_parallel_size": 2,
    "tensor_model_parallel_size": 2,
    "micro_batch_size": 1,
    "recompute_granularity": "full",
    "use_distributed_optimizer": False,
}
FINALISTS = 3


def legal_recipes(base: Recipe) -> Iterator[Recipe]:
    """Yields every legal point of SPACE, once, with the knobs that TP and full recompute need."""
    seen = set()
    for values in itertools.product(*SPACE.values()):
        recipe = with_companions(base.replace(dict(zip(SPACE, values, strict=True))))
        problems = [finding for finding in check(recipe) if finding.kind == "error"]
        if not problems and recipe.digest() not in seen:
            seen.add(recipe.digest())
            yield recipe


def with_companions(recipe: Recipe) -> Recipe:
    tensor_parallel = recipe.knob("tensor_model_parallel_size") > 1
    full = recipe.knob("recompute_granularity") == "full"
    return recipe.replace(
        {
            "sequence_parallel": tensor_parallel,
            "expert_tensor_parallel_size": 1,
            "recompute_method": "uniform" if full else None,
            "recompute_num_layers": 1 if full else None,
        }
    )


class Stopwatch:
    """Runs bursts on one engine and keeps the step times of each recipe."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine, self._folder, self._count = engine, folder, 0
        self.step_us: dict[str, list[float]] = {}
        self.cpu_us: dict[str, list[float]] = {}

    def run(self, recipe: Recipe) -> float | None:
        """Returns the median step time in µs over every run of this recipe so far, None if it failed."""
        self._count += 1
        outcome = self._engine.run(Burst(number=self._count, recipe=recipe, folder=self._folder / f"{self._count:04d}"))
        if outcome.failure is not None:
            return None
        times = self.step_us.setdefault(recipe.digest(), [])
        times += outcome.step_us
        self.cpu_us.setdefault(recipe.digest(), []).extend(outcome.cpu_us)
        return statistics.median(times)


def tune(base: Recipe, folder: Path, budget: int) -> Recipe:
    """Runs the tuner's own command on the worst corner, with all knobs frozen but those of SPACE and the ones that must
    follow them."""
    movable = {*SPACE, "sequence_parallel", "expert_tensor_parallel_size", "recompute_method", "recompute_num_layers"}
    frozen = tuple(sorted(set(KNOBS) - movable))
    start = with_companions(base.replace(WORST))
    start = start.model_copy(update={"tune": start.tune.model_copy(update={"freeze": frozen})})
    (folder / "worst.yaml").write_text(start.to_yaml())
    study = folder / "study"
    command = ["moe-autotune", "run", str(folder / "worst.yaml"), "--budget", str(budget), "--study", str(study)]
    subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]], check=True)
    return load_recipe(str(study / "tuned_recipe.yaml"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    base = load_recipe("cpu-moe")
    base = base.model_copy(
        update={
            "cluster": base.cluster.model_copy(update={"memory_gib": None}),
            "burst": base.burst.model_copy(update={"trace_steps": 0}),
        }
    )
    with tempfile.TemporaryDirectory(prefix="cpu-optimum-") as name:
        folder = Path(name)
        engine = open_engine("megatron", folder / "engine")
        try:
            recipes = list(legal_recipes(base))
            stopwatch = Stopwatch(engine, folder / "bursts")
            measured = [(time, recipe) for recipe in recipes if (time := stopwatch.run(recipe)) is not None]
            measured.sort(key=lambda entry: entry[0])
            print(f"{len(measured)} of {len(recipes)} legal recipes ran; median step {measured[0][0] / 1e3:.0f} to "
                  f"{measured[-1][0] / 1e3:.0f} ms")  # fmt: skip
            engine.close()  # the tuner starts its own ranks on the same two cores
            tuned = tune(base.model_copy(update={"burst": load_recipe("cpu-moe").burst}), folder, options.budget)
            tuned = tuned.model_copy(update={"burst": base.burst, "cluster": base.cluster})
            report(stopwatch, [recipe for _, recipe in measured[:FINALISTS]], tuned, options.repeats)
        finally:
            engine.close()


def report(stopwatch: Stopwatch, finalists: list[Recipe], tuned: Recipe, repeats: int) -> None:
    """Repeats the table's best and the tuned recipe, interleaved, and prints the ratio of their throughputs."""
    contenders = {recipe.digest(): recipe for recipe in [*finalists, tuned]}
    stopwatch.step_us.clear()
    stopwatch.cpu_us.clear()
    for _ in range(repeats):
        for recipe in contenders.values():
            stopwatch.run(recipe)
    medians = {digest: statistics.median(stopwatch.step_us[digest]) for digest in contenders}
    best = min(medians, key=lambda digest: medians[digest])
    for digest, median in sorted(medians.items(), key=lambda entry: entry[1]):
        mark = " (tuned)" if digest == tuned.digest() else ""
        settings = {knob: contenders[digest].knob(knob) for knob in SPACE}
        print(f"{median / 1e3:8.1f} ms  {settings}{mark}")
    work = {digest: statistics.median(stopwatch.cpu_us[digest]) for digest in contenders}
    print(f"tuned / best = {medians[best] / medians[tuned.digest()]:.3f}  (target ≥ 0.97), "
          f"by CPU time {min(work.values()) / work[tuned.digest()]:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
