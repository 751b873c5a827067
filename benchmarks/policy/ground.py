"""Environment of a scenario: bursts without traces, the plan, and the true throughput that no contender sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.policy.scenarios import Scenario
from benchmarks.policy.study import Paid, Study
from trainer.burst import Burst, FailureKind, Outcome
from trainer.engines.simulated import SimulatedEngine, true_throughput
from trainer.estimate.plan.choices import broken, written_out
from trainer.estimate.plan.search import Search, search
from trainer.recipe import Recipe

SEEDS_APART = 1000  # distance of the seeds of one scenario: larger than the number of scenarios
TRIES = 2  # attempts of a burst that the machine lost, as in the product


class Ground:
    """Environment of all contenders of a scenario: every evaluated recipe counts towards the best.

    `counts_fitting` turns on `Study.fitting`, which takes over a second per study.
    """

    def __init__(
        self,
        scenario: Scenario,
        truths: dict[str, tuple[float, Recipe]] | None = None,
        *,
        counts_fitting: bool = True,
    ) -> None:
        self.scenario, self.counts_fitting = scenario, counts_fitting
        self._truths = {} if truths is None else truths

    def seeded(self, number: int) -> Ground:
        """Returns the same cluster with other noise; number 0 is the scenario's own seed.

        True throughputs are shared.
        """
        scenario = replace(self.scenario, seed=self.scenario.seed + SEEDS_APART * number)
        return Ground(scenario, self._truths, counts_fitting=self.counts_fitting)

    def truth(self, recipe: Recipe) -> float:
        """Returns tokens/s/GPU without noise; 0 if it does not fit."""
        digest = recipe.digest()
        if digest not in self._truths:
            self._truths[digest] = (true_throughput(recipe, self.scenario.machine) or 0.0, recipe)
        return self._truths[digest][0]

    @property
    def best(self) -> tuple[float, Recipe]:
        """Returns the best throughput of all evaluated recipes, and its recipe."""
        return max(self._truths.values(), key=lambda known: known[0], default=(0.0, self.scenario.recipe))

    @cached_property
    def plan(self) -> Search:
        return search(self.scenario.recipe)

    def planned(self) -> Iterator[Recipe]:
        """Yields `plan`'s choices in order."""
        for row in self.plan.ranking:
            recipe = written_out(self.plan.finals.candidates.recipe(int(row)))
            if not broken(recipe, self.plan.unavoidable):
                yield recipe

    @contextmanager
    def untraced(self, contender: str) -> Iterator[Untraced]:
        """Yields a study without traces, after its base burst."""
        with TemporaryDirectory(prefix="policy-") as folder:
            yield Untraced(self, contender, Path(folder))


class Untraced:
    """Study without traces, burst by burst. It exports the recipe with the best measurement."""

    def __init__(self, ground: Ground, contender: str, folder: Path) -> None:
        self.ground, self.contender, self.folder = ground, contender, folder
        self._runs = 0
        self._engine = SimulatedEngine(folder / "engine")
        self._best: tuple[float, Recipe] | None = None
        self._paid: list[Paid] = []
        self.run(ground.scenario.recipe)
        self._start = self._paid.pop().tuned

    def run(self, recipe: Recipe) -> Outcome:
        """Runs a burst and returns its outcome."""
        self.ground.truth(recipe)
        number, hours = self._runs, 0.0
        for _ in range(TRIES):
            outcome = self._engine.run(self._burst(recipe, number))
            hours += (outcome.cost_s or 0.0) * recipe.world_size / 3600
            if outcome.failure is None or outcome.failure.kind is not FailureKind.INFRASTRUCTURE:
                break
        self._runs += 1
        rate = outcome.tokens_per_s_per_gpu
        if rate is not None and (self._best is None or rate > self._best[0]):
            self._best = (rate, recipe)
        oom = outcome.failure is not None and outcome.failure.kind is FailureKind.OOM
        tuned = self.ground.truth(self._best[1]) if self._best else 0.0
        self._paid.append(Paid(gpu_hours=hours, oom=oom, tuned=tuned))
        return outcome

    def study(self, *, ended: str, cpu_s: float) -> Study:
        scenario = self.ground.scenario
        return Study(
            contender=self.contender,
            scenario=scenario.name,
            world=scenario.recipe.world_size,
            start=self._start,
            paid=tuple(self._paid),
            ended=ended,
            cpu_s=cpu_s,
            seed=scenario.seed,
            knobs_changed=len(scenario.recipe.diff(self._best[1])) if self._best else 0,
        )

    @property
    def bursts(self) -> int:
        """Returns the number of bursts after the base's."""
        return len(self._paid)

    def _burst(self, recipe: Recipe, number: int) -> Burst:
        settings = recipe.burst.model_copy(update={"trace_steps": 0})
        untraced = recipe.model_copy(update={"burst": settings})
        folder = self.folder / f"{number:04d}"
        return Burst(number=number, recipe=untraced, folder=folder, seed=self.ground.scenario.seed)
