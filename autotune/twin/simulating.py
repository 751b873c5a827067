"""Simulates a study's probe and measured recipes on a machine, and learns from them as the study did from its own
bursts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from analyzers import analyze
from autotune.twin.probed import probe_on
from policies.surrogate.evidence import GARBAGE
from policies.surrogate.prior import prior_of
from policies.surrogate.probed import with_probe
from policies.surrogate.surrogate import Surrogate, fit_surrogate
from policies.trial import Trial
from trainer.burst import Burst
from trainer.engines.simulated import SimulatedEngine
from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe
from trainer.recipe.machine import Machine, Noise

ROOM_GIB = 1e6  # memory of a simulated GPU: every recipe that fits on the cluster must run
SEED = 1


@dataclass(frozen=True, kw_only=True)
class MachineFit:
    """The surrogate learned from recipes simulated on a machine; `outside_gib`: their mean memory outside the
    allocator, None on CPUs."""

    surrogate: Surrogate
    outside_gib: float | None


def simulate(trials: Sequence[Trial], machine: Machine, *, base: Recipe, rows: Sequence[Row]) -> MachineFit:
    """Simulates the probe's `rows` on the cluster of `base` and every measured trial, once and without noise, and
    learns from them. Trials that the study traced are traced."""
    quiet = machine.model_copy(update={"noise": Noise(step=0.0, burst=0.0), "stragglers": (), "faults": ()})
    with TemporaryDirectory(prefix="twin-") as folder:
        simulated = [_simulated(trial, quiet, Path(folder)) for trial in trials if is_measured(trial)]
    prior = with_probe(prior_of([]), probe_on(base, rows, quiet), base)
    return MachineFit(
        surrogate=fit_surrogate(simulated, limit_gib=None, prior=prior), outside_gib=mean_outside_gib(simulated)
    )


def is_measured(trial: Trial) -> bool:
    return any(outcome.ok and outcome.step_us for outcome in trial.outcomes)


def mean_outside_gib(trials: Sequence[Trial]) -> float | None:
    """Returns the mean over trials of the largest memory outside the allocator on any rank, GiB; None if it was not
    measured."""
    most = [max(o.outside_gib) for trial in trials for o in trial.outcomes[:1] if o.ok and o.outside_gib]
    return fmean(most) if most else None


def traced_collection_us(trial: Trial) -> float | None:
    """Returns the mean garbage collection time in the traced steps of a trial, µs; None without a trace."""
    steps = [step for trace in trial.analysis.traces for step in trace.steps] if trial.analysis else []
    return fmean(step.host_by_activity.get(GARBAGE, 0.0) for step in steps) if steps else None


def _simulated(trial: Trial, machine: Machine, folder: Path) -> Trial:
    traced = trial.analysis is not None
    recipe = as_simulated(trial.recipe, machine, trace_steps=int(traced))
    burst = Burst(number=trial.number, recipe=recipe, folder=folder / str(trial.number), seed=SEED)
    outcome = SimulatedEngine(folder / "engine").run(burst)
    analysis = analyze([burst.folder]) if traced and outcome.ok else None
    return replace(trial, proposal=replace(trial.proposal, recipe=recipe), outcomes=(outcome,), analysis=analysis)


def as_simulated(recipe: Recipe, machine: Machine, *, trace_steps: int) -> Recipe:
    """Returns the recipe with one step on the simulated machine, whose memory limit is out of reach."""
    burst = recipe.burst.model_copy(
        update={
            "engine": "simulated",
            "launcher": "local",
            "machine": machine,
            "warmup_steps": 0,
            "measure_steps": 1,
            "trace_steps": trace_steps,
        }
    )
    cluster = recipe.cluster.model_copy(update={"memory_gib": ROOM_GIB})
    return recipe.model_copy(update={"burst": burst, "cluster": cluster})
