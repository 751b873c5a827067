"""The search of a study by Optuna: one study, given every trial and asked in every phase. The only file that imports
Optuna.

A study of a tuning run is rebuilt from its trials at each decision and seeded by seed and trial number, so that a
resumed run makes the same proposals. Optuna gets the recipe that ran, as a point of the study's `Space`; running out of
memory is a completed, infeasible trial. The default sampler maximises the acquisition over the phase's candidates;
`tpe`, `gp` and `random` sample the whole space, and the candidate nearest to their point is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from policies.noise import throughput
from policies.search.space import Point, Size, Space
from policies.trial import Status, Trial
from trainer.recipe import Recipe

if TYPE_CHECKING:
    import optuna

Distributions: TypeAlias = "dict[str, optuna.distributions.BaseDistribution]"


class HasRecipe(Protocol):
    """A candidate, of which the search uses the recipe alone."""

    @property
    def recipe(self) -> Recipe: ...


C = TypeVar("C", bound=HasRecipe)
SURROGATE = "surrogate"
# trials that a sampler draws at random first: base and fit phase replace further exploration (judged)
STARTUP_TRIALS = 4
# peak over limit minus one of a recipe that ran out of memory, and minus that of one that ran, if not known (judged)
UNKNOWN_EXCESS = 0.1


def ask(
    space: Space,
    trials: Sequence[Trial],
    candidates: Sequence[C],
    nearest: Callable[[Point], Iterator[C]],
    *,
    pick: Callable[[Sequence[C]], C],
    sampler: str,
    seed: int,
    result_of: Callable[[Trial], TrialResult] | None = None,
) -> C | None:
    """Asks Optuna's study of `trials` for the next candidate of a phase; returns None if there is none.

    `candidates` are the best of the phase, and `pick` returns the one of them with the best acquisition; `nearest`
    yields all candidates of the phase by their distance from a point. `sampler` is surrogate, tpe, gp or random;
    `result_of` returns the result of a trial given to Optuna (None: the measured one). Deterministic in its arguments.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = _distributions(space)
    if sampler != SURROGATE:
        study = _study(space, trials, distributions, _other_sampler(sampler, seed), result_of or measured)
        return next(nearest(dict(study.ask(distributions).params)), None)
    if not candidates:
        return None
    picking = _surrogate_sampler(space, lambda: pick(candidates), distributions)
    _study(space, trials, distributions, picking, result_of or measured).ask(distributions)
    picked: C = picking.picked
    return picked


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """Result of a trial given to Optuna: tokens/s/GPU (None without a measurement), and peak over limit, minus one."""

    rate: float | None
    excess: float


def measured(trial: Trial) -> TrialResult:
    """Returns the result that the trial's bursts measured."""
    return TrialResult(rate=throughput(trial), excess=excess(trial))


def excess(trial: Trial) -> float:
    """Returns peak memory over the limit, minus one: above 0 the trial did not fit."""
    peaks = [max(o.peak_gib) / o.limit_gib - 1 for o in trial.outcomes if o.ok and o.peak_gib and o.limit_gib]
    return max(peaks) if peaks else (UNKNOWN_EXCESS if trial.status is Status.OOM else -UNKNOWN_EXCESS)


def _distributions(space: Space) -> Distributions:
    import optuna

    return {
        axis: optuna.distributions.IntDistribution(1, domain.high, log=True)
        if isinstance(domain, Size)
        else optuna.distributions.CategoricalDistribution(domain.values)
        for axis, domain in space.axes.items()
    }


def _surrogate_sampler(space: Space, pick: Callable[[], HasRecipe], distributions: Distributions) -> Any:
    import optuna

    class SurrogateSampler(optuna.samplers.BaseSampler):
        """Samples the point of the candidate that `pick` returns; `picked` is that candidate."""

        picked: HasRecipe | None = None

        def infer_relative_search_space(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> Distributions:
            return distributions

        def sample_relative(
            self, study: optuna.Study, trial: optuna.trial.FrozenTrial, search_space: Distributions
        ) -> dict[str, Any]:
            self.picked = pick()
            return dict(space.point(self.picked.recipe))

        def sample_independent(
            self,
            study: optuna.Study,
            trial: optuna.trial.FrozenTrial,
            param_name: str,
            param_distribution: optuna.distributions.BaseDistribution,
        ) -> Any:
            raise NotImplementedError(f"{param_name} is sampled with all others")

    return SurrogateSampler()


def _other_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    import optuna

    makers: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=STARTUP_TRIALS),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
    }
    return makers[name]()


def _study(
    space: Space,
    trials: Sequence[Trial],
    distributions: Distributions,
    sampler: optuna.samplers.BaseSampler,
    result_of: Callable[[Trial], TrialResult],
) -> optuna.Study:
    """Returns a study with every trial, except those that failed for a reason other than memory.

    Its value is log throughput; a trial that ran out of memory has the lowest of all trials.
    """
    import optuna

    study = optuna.create_study(direction="maximize", sampler=sampler)
    every = [result_of(trial) for trial in trials]
    rates = [math.log(each.rate) for each in every if each.rate]
    for trial, each in zip(trials, every, strict=True):
        rate = each.rate
        if rate is None and trial.status is not Status.OOM:
            continue
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(space.point(trial.recipe)),
                distributions=distributions,
                value=math.log(rate) if rate else min(rates, default=0.0),
                constraints={"memory": each.excess},
            )
        )
    return study


@dataclass(frozen=True, kw_only=True)
class ExportedTrial:
    """A trial for Optuna's own tools.

    `knobs` are those that vary in the study, the same for every trial; `tokens_per_s` is None if the trial failed for a
    reason other than memory; `excess` is peak over limit, minus one.
    """

    knobs: Mapping[str, Any]
    tokens_per_s: float | None
    excess: float
    overruled: bool  # measured faster than the study's best without being accepted as such: infeasible to Optuna
    attributes: Mapping[str, Any]
    started: datetime
    ended: datetime


def write_study(path: Path, name: str, trials: Sequence[ExportedTrial]) -> None:
    """Writes an Optuna study of that name to a new SQLite file, to be read by `optuna.load_study`.

    Contains every trial, in order. Those that ran out of memory are COMPLETE and infeasible, those that failed
    otherwise are FAIL.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    try:
        study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
        distributions = {
            knob: _distribution([_plain(trial.knobs[knob]) for trial in trials])
            for knob in (trials[0].knobs if trials else ())
        }
        for trial in trials:
            study.add_trial(_frozen(trial, distributions))
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _frozen(trial: ExportedTrial, distributions: Distributions) -> optuna.trial.FrozenTrial:
    import optuna

    states = optuna.trial.TrialState
    failed = trial.tokens_per_s is None
    frozen = optuna.trial.create_trial(
        state=states.FAIL if failed else states.COMPLETE,
        value=trial.tokens_per_s,
        params={knob: _plain(value) for knob, value in trial.knobs.items()},
        distributions=distributions,
        user_attrs=dict(trial.attributes),
        constraints=None if failed else {"memory": trial.excess, "verdict": 1.0 if trial.overruled else -1.0},
    )
    frozen.datetime_start, frozen.datetime_complete = trial.started, trial.ended
    return frozen


def _distribution(values: Sequence[Any]) -> optuna.distributions.BaseDistribution:
    """Returns an integer distribution for integers, which keep their order; else a categorical one."""
    import optuna

    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return optuna.distributions.IntDistribution(min(values), max(values))
    return optuna.distributions.CategoricalDistribution(tuple(dict.fromkeys(values)))


def _plain(value: Any) -> Any:
    """Returns the value, a list as text, since a parameter of Optuna has a single value."""
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else value
