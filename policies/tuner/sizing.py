"""Chooses the size of a burst: the one that shows most expected improvement of the target per GPU-hour.

A burst of a recipe x, at any size, informs log step(x) - log step(incumbent) at full size as far as its own step time
is correlated with that difference under the surrogate. What a smaller run cannot show (the bubble of more stages, DP
across more nodes, EP over slower links) stays uncertain. GPU-hours include starting ranks and building models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from statistics import NormalDist

from policies.candidates.candidate import Candidate, PredictionSource, preferred
from policies.candidates.knowledge import Knowledge
from policies.constants import constant
from policies.noise import PINNED
from policies.trial import Status
from trainer.estimate.candidates import tabulate
from trainer.estimate.startup import startup_of
from trainer.fidelity import Fidelity, fidelities_of
from trainer.recipe import Recipe

MIN_FIT_PROBABILITY = constant("min_fit_probability")
MIN_PROXY_LAYERS = int(constant("min_proxy_layers"))
SIZED_CANDIDATES = int(constant("sized_candidates"))
MAX_EXAMINED = 8 * SIZED_CANDIDATES  # most candidates examined in search of those with a proxy
WHOLE_CANDIDATES = 2  # candidates without a proxy that are considered
MAX_SIZES = 4  # proxies considered per recipe


@dataclass(frozen=True, kw_only=True)
class Run:
    """A way to run a recipe: `recipe` is what runs, the proxy of a `fidelity` or the recipe itself (None)."""

    fidelity: Fidelity | None
    recipe: Recipe


@dataclass(frozen=True, kw_only=True)
class RunValue:
    """Value of a run: the expected improvement of the target's log throughput that it would reveal, and its
    GPU-hours."""

    run: Run
    improvement: float
    gpu_hours: float

    @property
    def rate(self) -> float:
        return self.improvement / self.gpu_hours


class Sizes:
    """The possible sizes of bursts: proxies on at most `most_nodes` nodes, and the full recipe if the launcher's
    `nodes` suffice (None: unlimited)."""

    def __init__(self, *, most_nodes: int, nodes: int | None) -> None:
        self._most = most_nodes if nodes is None else min(most_nodes, nodes)
        self._nodes = nodes
        self._runs: dict[str, list[Run]] = {}

    def smaller(self, recipe: Recipe) -> list[Run]:
        """Returns the proxies of a recipe, the smallest first."""
        key = recipe.digest()
        if key not in self._runs:
            found = fidelities_of(recipe, most_nodes=self._most)
            runs = [Run(fidelity=fidelity, recipe=proxy) for fidelity, proxy in found]
            least = min(MIN_PROXY_LAYERS, recipe.architecture.num_layers)
            self._runs[key] = [run for run in runs if run.recipe.architecture.num_layers >= least]
        return self._runs[key]

    def runs(self, recipe: Recipe) -> list[Run]:
        """Returns every way to run a recipe on the launcher's nodes; [] if it needs more nodes and has no proxy."""
        has_nodes = self._nodes is None or recipe.cluster.nodes <= self._nodes
        return [*self.smaller(recipe), *([Run(fidelity=None, recipe=recipe)] if has_nodes else [])]

    def best(self, recipe: Recipe, knowledge: Knowledge) -> RunValue | None:
        """Returns the run with the highest value per GPU-hour, of those that should fit; None if there is none."""
        values, runs = _RunValues(recipe, knowledge), self.runs(recipe)
        smaller = [run for run in runs if run.fidelity is not None]
        apart = max(1, math.ceil(len(smaller) / MAX_SIZES))
        found = [values.of(run) for run in (*smaller[::apart], *runs[len(smaller) :])]
        return max(filter(None, found), key=lambda each: each.rate, default=None)

    def ranked(self, found: Iterable[Candidate], knowledge: Knowledge) -> list[Candidate]:
        """Returns the most promising candidates, scored per GPU-hour, the highest first: SIZED_CANDIDATES that have a
        proxy, and WHOLE_CANDIDATES that have none."""
        smaller: list[Candidate] = []
        whole: list[Candidate] = []
        for each in islice(found, MAX_EXAMINED):
            (smaller if self.smaller(each.recipe) else whole).append(each)
            if len(smaller) >= SIZED_CANDIDATES:
                break
        rated = [replace(each, score=self._rate(each, knowledge)) for each in (*smaller, *whole[:WHOLE_CANDIDATES])]
        return sorted((each for each in rated if each.score > 0), key=lambda each: -each.score)

    def first(self, found: Sequence[Candidate]) -> Candidate:
        """Returns the preferred candidate while nothing runs; one with a proxy if there is any."""
        return preferred([each for each in found if self.smaller(each.recipe)] or found)

    def _rate(self, candidate: Candidate, knowledge: Knowledge) -> float:
        """Returns the score of a candidate per GPU-hour of its best run, reduced if that run shows only part of its
        improvement; 0 if it has no run."""
        value = self.best(candidate.recipe, knowledge)
        if value is None:
            return 0.0
        known = candidate.expected_improvement if candidate.source is PredictionSource.SURROGATE else 0.0
        shown = min(value.improvement / known, 1.0) if known > 0 else 1.0
        return candidate.score * shown / value.gpu_hours


class _RunValues:
    """Computes, for each size at which one recipe may run, the improvement that the burst would reveal and its
    GPU-hours."""

    def __init__(self, recipe: Recipe, knowledge: Knowledge) -> None:
        self._recipe, self._knowledge, self._time = recipe, knowledge, knowledge.surrogate.time
        self._form = self._time.closed_form_of(recipe)

    @cached_property
    def _gain(self) -> tuple[float, float]:
        """Returns (mean, standard deviation) of the log gain over the incumbent; while nothing runs, of minus the log
        step time, with mean 0."""
        if not self._knowledge.runs:
            return 0.0, math.sqrt(float(self._time.covariance_of(self._form, self._form)[0]))
        log_step, deviation = self._time.difference(self._form, self._time.closed_form_of(self._knowledge.recipe))
        return -float(log_step[0]), float(deviation[0])

    def of(self, run: Run) -> RunValue | None:
        """Returns the value of a run; None if it is not predicted to fit."""
        fits = float(self._knowledge.surrogate.memory.fits(tabulate([run.recipe]))[0])
        if fits < MIN_FIT_PROBABILITY:
            return None
        mean, deviation = self._gain
        improvement = expected_improvement(mean, min(self._shown(run), deviation)) * fits
        return RunValue(run=run, improvement=improvement, gpu_hours=gpu_hours_of(run.recipe, self._knowledge))

    def _shown(self, run: Run) -> float:
        """Returns the standard deviation of the part of the gain that is known once the run's step time is."""
        seen = self._time.closed_form_of(run.recipe)
        shared = float(self._time.covariance_of(self._form, seen)[0])
        if self._knowledge.runs:
            shared -= float(self._time.covariance_of(self._time.closed_form_of(self._knowledge.recipe), seen)[0])
        variance = float(self._time.covariance_of(seen, seen)[0]) + PINNED**2
        return abs(shared) / math.sqrt(variance)


def expected_improvement(mean: float, deviation: float) -> float:
    """Returns the expected value of max(x, 0) for a normal x."""
    if deviation <= 0:
        return max(mean, 0.0)
    normal = NormalDist()
    return deviation * normal.pdf(mean / deviation) + mean * normal.cdf(mean / deviation)


def gpu_hours_of(recipe: Recipe, knowledge: Knowledge) -> float:
    """Returns the GPU-hours of a burst of a recipe.

    The start of the ranks is left out if the ranks of the last burst are still up on as many nodes.
    """
    start, settings = startup_of(recipe), recipe.burst
    last = knowledge.trials[-1] if knowledge.trials else None
    waits = last is not None and last.status is Status.OK and last.ran.cluster.nodes == recipe.cluster.nodes
    started_s = start.build_s + (0.0 if waits and settings.keeps_ranks else start.launch_s)
    steps = settings.warmup_steps + settings.measure_steps + settings.trace_steps
    step_s = math.exp(float(knowledge.surrogate.time.predict(tabulate([recipe]))[0][0]))
    return (started_s + steps * step_s) * recipe.world_size / 3600
