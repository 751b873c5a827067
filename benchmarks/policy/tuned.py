"""Runs the policy in the product's own loop, with traces, and finds the recipe it would export after every burst."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from analyzers import analyze
from autotune.probe.study import probe_before
from autotune.tuning import study as studies
from autotune.tuning.bench import Bench
from autotune.tuning.events import BurstStarted, Event, Probed
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_events
from autotune.tuning.loop import Loop
from benchmarks.policy.fitting import fitting_of
from benchmarks.policy.ground import Ground
from benchmarks.policy.study import Paid, Predicted, Study
from policies.search.sampler import SURROGATE
from policies.trial import Trial
from policies.tuner.tuner import Tuner
from trainer.burst import FailureKind
from trainer.engines.simulated import SimulatedEngine
from trainer.errors import ToolError
from trainer.recipe import Recipe
from trainer.recipe.rules import check

Contender = Callable[[Ground, int], Study]
DEFAULT_BUDGET = 20  # that of `run`
BASE = 0  # the trial of the recipe as given: its bursts at the start are not counted
BASE_BURSTS = 2  # most bursts of the base: it is measured twice if it runs


def tuned_by(sampler: str, *, probe: bool = True) -> Contender:
    """Returns the contender that runs the product with a sampler (`tune.sampler`), with or without a probe first."""
    return partial(_play, sampler=sampler, probe=probe)


def _play(ground: Ground, budget: int, *, sampler: str, probe: bool) -> Study:
    started = time.process_time()
    with TemporaryDirectory(prefix="policy-") as folder:
        ended, events = run_policy(ground, Path(folder) / "study", budget, sampler=sampler, probe=probe)
    spent = time.process_time() - started
    start, *paid = _paid(ground, events)
    history = History(events)
    paid = _charged(paid, history.probed)
    recipe = ground.scenario.recipe
    return Study(
        contender=_name(sampler, probe=probe),
        scenario=ground.scenario.name,
        world=recipe.world_size,
        start=start.tuned,
        paid=tuple(paid[:budget]),
        predicted=tuple(_predicted(ground, history.attempted)),
        fitting=tuple(fitting_of(ground.scenario, history.trials, history.rows)) if ground.counts_fitting else (),
        ended=ended,
        cpu_s=spent,
        seed=ground.scenario.seed,
        knobs_changed=len(recipe.diff(history.best.recipe)) if history.best else 0,
    )


def _name(sampler: str, *, probe: bool) -> str:
    name = "policy" if sampler == SURROGATE else sampler
    return name if probe else f"{name} unprobed"


def _charged(paid: list[Paid], probed: Probed | None) -> list[Paid]:
    """Returns the bursts with the probe's cost added to the first, because the base's bursts are not counted."""
    if probed is None or not paid:
        return paid
    first, *rest = paid
    return [replace(first, gpu_hours=first.gpu_hours + probed.gpu_hours), *rest]


def run_policy(
    ground: Ground,
    folder: Path,
    budget: int,
    *,
    sampler: str = SURROGATE,
    proxy_nodes: int | None = None,
    ablate: int = 0,
    probe: bool = True,
) -> tuple[str, list[Event]]:
    """Tunes the scenario's recipe in a study folder; returns how the study ended, and its journal.

    `budget` counts bursts after the base's (a few more are possible), of which `ablate` are for the ablation; a probe
    may cost as much as in a study of the default budget. `sampler` and `proxy_nodes` are those of the recipe's `tune`.
    """
    base, seed = ground.scenario.recipe, ground.scenario.seed
    tune = base.tune.model_copy(update={"sampler": sampler, "proxy_nodes": proxy_nodes})
    base = base.model_copy(update={"tune": tune})
    study = studies.create(
        base, given=b"", folder=folder, seed=seed, clock=time.time, listener=lambda event, history: None
    )
    probe_before(study, budget=DEFAULT_BUDGET, max_gpu_hours=None, rows=probe)
    bench = Bench(
        journal=study.journal,
        engine=SimulatedEngine(folder / "engine"),
        bursts=study.bursts,
        budget=budget + BASE_BURSTS,
        reserved=ablate,
        seed=seed,
        check=check,
        analyze=analyze,
        clock=time.time,
    )
    tuner = Tuner(base, seed, probed=study.journal.whole.rows)
    sizing = None if proxy_nodes is None else tuner
    loop = Loop(base=base, policy=tuner, bench=bench, patience=tune.patience, sizing=sizing)
    try:
        ended: str = loop.run().status
    except ToolError as error:
        ended = str(error)
    finally:
        study.close()
    return ended, read_events(folder / JOURNAL)[0]


def exported_after(events: Iterable[Event]) -> list[Recipe | None]:
    """Returns the recipe that would be exported after the base's bursts and after each later one; None before any
    recipe runs."""
    return [best.recipe if (best := history.best) else None for history, _ in _moments(events)]


def _paid(ground: Ground, events: Iterable[Event]) -> Iterator[Paid]:
    """Yields the base's bursts as one, then each later burst."""
    for history, hours in _moments(events):
        failure = history.finished[-1].outcome.failure if history.finished else None
        oom = failure is not None and failure.kind is FailureKind.OOM
        tuned = ground.truth(history.best.recipe) if history.best else 0.0
        yield Paid(gpu_hours=hours, oom=oom, tuned=tuned)


def _moments(events: Iterable[Event]) -> Iterator[tuple[History, float]]:
    """Yields the study after the base's bursts and after each later one, just before the next starts, with the
    GPU-hours since the previous moment."""
    history, before, counting = History(), 0.0, False
    for event in events:
        if isinstance(event, BurstStarted) and (counting or event.trial != BASE):
            yield history, history.gpu_hours - before
            before, counting = history.gpu_hours, True
        history.fold(event)
    yield history, history.gpu_hours - before


def _predicted(ground: Ground, trials: dict[int, Trial]) -> Iterator[Predicted]:
    """Yields the predictions of trials that ran and whose parent ran; evaluates the true throughput of every recipe
    that ran."""
    for trial in trials.values():
        after = ground.truth(trial.recipe)
        parent, predicted = trial.proposal.parent, trial.proposal.predicted
        before = ground.truth(trials[parent].recipe) if parent is not None else 0.0
        if predicted.gain is not None and before and after:
            yield Predicted(
                gain=predicted.gain,
                bound=predicted.gain_bound,
                true=after / before - 1,
                low=predicted.gain_low,
                trial=trial.number,
            )
