"""The search around the best recipe, and studies for Optuna's own tools: the only file that knows Optuna.

A point is one option per axis. What was measured is told to a fresh in-memory study at every call, so the answer
depends on the arguments alone and a resumed run goes on as it would have. Running out of memory is a completed,
infeasible trial; points that may not be proposed are told as infeasible too, so that the sampler moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import optuna

Distributions: TypeAlias = "dict[str, optuna.distributions.BaseDistribution]"
Point = dict[str, str]  # axis -> label of the option

# The sampler's random start: the diagnosis and the trials of earlier phases already stand for exploration.
RANDOM_START = 4
# Points asked of the sampler before the space counts as exhausted; it repeats itself in 20 to 30 % of cases.
ASKS = 200
MODEL = "surrogate"  # the sampler that asks what is believed


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A point that was tried. `excess` is peak over limit minus one: above 0 it did not fit."""

    point: Point
    tokens_per_s: float  # 0 for a point that gave no figure
    excess: float


@dataclass(frozen=True, kw_only=True)
class Told:
    """A trial for Optuna's own tools. `knobs` are those that vary in the study, the same for every trial;
    `tokens_per_s` is None for one that failed for another reason than memory; `excess` as in Measured."""

    knobs: Mapping[str, Any]
    tokens_per_s: float | None
    excess: float
    attributes: Mapping[str, Any]
    began: datetime
    ended: datetime


def suggest(
    axes: dict[str, tuple[str, ...]],
    measured: Sequence[Measured],
    hints: Sequence[Point],
    *,
    seed: int,
    refuse: Callable[[Point], str | None],
    sampler: str = "tpe",
    ranked: Iterable[Point] = (),
) -> Point | None:
    """The next point to try: hints first, in order, then the sampler's.

    `axes` lists each axis' labels; `refuse` says why a point may not be proposed, None when it may. `sampler` is tpe,
    gp, random, or model: that one gives the points of `ranked` in their order. Returns None when nothing new was found
    in `ASKS` asks, or in all of `ranked`. The same arguments give the same point.
    """
    points = list(ranked)
    distributions = _distributions(axes)
    study = _study(distributions, measured, _sampler(sampler, seed, points, distributions))
    for hint in hints:
        study.enqueue_trial(hint)
    for _ in range(len(hints) + (len(points) if sampler == MODEL else ASKS)):
        trial = study.ask(distributions)
        point = {axis: str(label) for axis, label in trial.params.items()}
        if refuse(point) is None:
            return point
        trial.set_constraint("refused", 1.0)
        study.tell(trial, 0.0)
    return None


def _distributions(axes: dict[str, tuple[str, ...]]) -> Distributions:
    import optuna

    return {axis: optuna.distributions.CategoricalDistribution(labels) for axis, labels in axes.items()}


def _sampler(
    name: str, seed: int, ranked: Sequence[Point], distributions: Distributions
) -> optuna.samplers.BaseSampler:
    import optuna

    class Ranked(optuna.samplers.BaseSampler):
        """Gives points that somebody else has ranked, one an ask."""

        def __init__(self) -> None:
            self._left = iter(ranked)

        def infer_relative_search_space(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> Distributions:
            return distributions

        def sample_relative(
            self, study: optuna.Study, trial: optuna.trial.FrozenTrial, search_space: dict[str, Any]
        ) -> dict[str, Any]:
            return dict(next(self._left, {}))

        def sample_independent(
            self,
            study: optuna.Study,
            trial: optuna.trial.FrozenTrial,
            param_name: str,
            param_distribution: optuna.distributions.BaseDistribution,
        ) -> Any:
            return param_distribution.to_external_repr(0)

    makers: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
        MODEL: Ranked,
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=RANDOM_START),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed, n_startup_trials=RANDOM_START),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
    }
    return makers[name]()


def _study(
    distributions: Distributions, measured: Sequence[Measured], sampler: optuna.samplers.BaseSampler
) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for seen in measured:
        study.add_trial(
            optuna.trial.create_trial(
                params=seen.point,
                distributions=distributions,
                value=seen.tokens_per_s,
                constraints={"memory": seen.excess},
            )
        )
    return study


def write_study(path: Path, name: str, trials: Sequence[Told]) -> None:
    """An Optuna study of that name in a new SQLite file, to be read by `optuna.load_study`: every trial, in order; what
    ran out of memory is complete and infeasible, what failed otherwise is failed."""
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


def _frozen(trial: Told, distributions: Distributions) -> optuna.trial.FrozenTrial:
    import optuna

    states = optuna.trial.TrialState
    failed = trial.tokens_per_s is None
    frozen = optuna.trial.create_trial(
        state=states.FAIL if failed else states.COMPLETE,
        value=trial.tokens_per_s,
        params={knob: _plain(value) for knob, value in trial.knobs.items()},
        distributions=distributions,
        user_attrs=dict(trial.attributes),
        constraints=None if failed else {"memory": trial.excess},
    )
    frozen.datetime_start, frozen.datetime_complete = trial.began, trial.ended
    return frozen


def _distribution(values: Sequence[Any]) -> optuna.distributions.BaseDistribution:
    """Numbers keep their order; whatever else, and numbers beside null, are named values."""
    import optuna

    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return optuna.distributions.IntDistribution(min(values), max(values))
    return optuna.distributions.CategoricalDistribution(tuple(dict.fromkeys(values)))


def _plain(value: Any) -> Any:
    """Lists as text: Optuna keeps single values."""
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else value
