"""The search around the best recipe: the only file that knows Optuna.

A point is one option per axis. What was measured is told to a fresh in-memory study at every call, so the answer
depends on the arguments alone and a resumed run goes on as it would have. Running out of memory is a completed,
infeasible trial; points that may not be proposed are told as infeasible too, so that the sampler moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna

Point = dict[str, str]  # axis -> label of the option

# The sampler's random start: the diagnosis and the trials of earlier phases already stand for exploration.
RANDOM_START = 4
# Points asked of the sampler before the space counts as exhausted; it repeats itself in 20 to 30 % of cases.
ASKS = 200


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A point that was tried. `excess` is peak over limit minus one: above 0 it did not fit."""

    point: Point
    tokens_per_s: float  # 0 for a point that gave no figure
    excess: float


def suggest(
    axes: dict[str, tuple[str, ...]],
    measured: Sequence[Measured],
    hints: Sequence[Point],
    *,
    seed: int,
    refuse: Callable[[Point], str | None],
) -> Point | None:
    """The next point to try: hints first, in order, then the sampler's.

    `axes` lists each axis' labels; `refuse` says why a point may not be proposed, None when it may. Returns None
    when nothing new was found in `ASKS` asks. The same arguments give the same point.
    """
    study, distributions = _study(axes, measured, seed)
    for hint in hints:
        study.enqueue_trial(hint)
    for _ in range(len(hints) + ASKS):
        trial = study.ask(distributions)
        point = {axis: str(label) for axis, label in trial.params.items()}
        if refuse(point) is None:
            return point
        trial.set_constraint("refused", 1.0)
        study.tell(trial, 0.0)
    return None


def _study(
    axes: dict[str, tuple[str, ...]], measured: Sequence[Measured], seed: int
) -> tuple[optuna.Study, dict[str, optuna.distributions.BaseDistribution]]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        axis: optuna.distributions.CategoricalDistribution(labels) for axis, labels in axes.items()
    }
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=RANDOM_START)
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
    return study, distributions
