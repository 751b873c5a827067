"""The policy as it is: the product's own loop, traces and all, and what it would export after every burst."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from analyzers import analyze
from autotune.tuning import study as studies
from autotune.tuning.bench import Bench
from autotune.tuning.events import BurstStarted, Event
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_events
from autotune.tuning.loop import Loop
from benchmarks.policy.ground import Ground
from benchmarks.policy.study import Foretold, Paid, Study
from policies.policy import Policy
from policies.trial import Trial
from trainer.burst import FailureKind
from trainer.engines.simulated import SimulatedEngine
from trainer.errors import ToolError
from trainer.recipe.rules import check

BASE = 0  # the trial of the recipe as given: its bursts at the start are not counted
BASE_BURSTS = 2  # at most: one that runs is measured twice


def policy(ground: Ground, budget: int) -> Study:
    started = time.process_time()
    with TemporaryDirectory(prefix="policy-") as folder:
        ended, events = _run(ground, Path(folder) / "study", budget + BASE_BURSTS)
    start, *paid = _paid(ground, events)
    recipe = ground.scenario.recipe
    return Study(
        contender="policy",
        scenario=ground.scenario.name,
        world=recipe.world_size,
        start=start.tuned,
        paid=tuple(paid[:budget]),
        foretold=tuple(_foretold(ground, History(events).attempted)),
        ended=ended,
        cpu_s=time.process_time() - started,
    )


def _run(ground: Ground, folder: Path, budget: int) -> tuple[str, list[Event]]:
    """How the study ended, and its journal."""
    base, seed = ground.scenario.recipe, ground.scenario.seed
    study = studies.begin(
        base, given=b"", folder=folder, seed=seed, clock=time.time, listener=lambda event, history: None
    )
    bench = Bench(
        journal=study.journal,
        engine=SimulatedEngine(folder / "engine"),
        bursts=study.bursts,
        budget=budget,
        seed=seed,
        check=check,
        analyze=analyze,
        clock=time.time,
    )
    loop = Loop(base=base, policy=Policy(base, seed), bench=bench, patience=base.tune.patience)
    try:
        ended: str = loop.run().status
    except ToolError as error:
        ended = str(error)
    finally:
        study.close()
    return ended, read_events(folder / JOURNAL)[0]


def _paid(ground: Ground, events: Iterable[Event]) -> Iterator[Paid]:
    """What would be exported after the base's bursts, then every burst; each as of the moment before the next."""
    history, before, counting = History(), 0.0, False
    for event in events:
        if isinstance(event, BurstStarted) and (counting or event.trial != BASE):
            yield _burst(ground, history, before)
            before, counting = history.gpu_hours, True
        history.fold(event)
    yield _burst(ground, history, before)


def _burst(ground: Ground, history: History, hours_before: float) -> Paid:
    failure = history.finished[-1].outcome.failure if history.finished else None
    return Paid(
        gpu_hours=history.gpu_hours - hours_before,
        oom=failure is not None and failure.kind is FailureKind.OOM,
        tuned=_exported(ground, history),
    )


def _exported(ground: Ground, history: History) -> float:
    return ground.truth(history.best.recipe) if history.best else 0.0


def _foretold(ground: Ground, trials: dict[int, Trial]) -> Iterator[Foretold]:
    """Of what ran and came from something that runs; every recipe that ran has its truth asked for."""
    for trial in trials.values():
        after = ground.truth(trial.recipe)
        parent, predicted = trial.proposal.parent, trial.proposal.predicted
        before = ground.truth(trials[parent].recipe) if parent is not None else 0.0
        if predicted.gain is not None and before and after:
            yield Foretold(gain=predicted.gain, bound=predicted.gain_bound, true=after / before - 1)
