"""Moves keys of a simulated machine so that the steps of played recipes become those that were measured.

One linear update of keys on their log scale, each as far as its standard deviation allows: with K keys, R recipes,
slopes J [R, K] of the log steps, variances S [K] of the keys and σ of the steps, S Jᵀ (J S Jᵀ + σ²)⁻¹ · errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from autotune.twin.translation import bounded, machine_of
from trainer.engines.simulated import simulated_step_s
from trainer.recipe import Recipe

Floats = npt.NDArray[np.float64]

STEP_DEVIATION = 0.01  # of a measured step from burst to burst, and of a simulation with the right keys, log (judged)
DERIVATIVE_STEP = 0.05  # of a key's log
ROUNDS = 2


def matched_to_steps(
    keys: Mapping[str, float], deviations: Mapping[str, float], steps: Sequence[tuple[Recipe, float]]
) -> dict[str, float]:
    """Returns the keys after the updates. `deviations`: of the log of each key that may move; `steps`: recipes and
    their measured steps in seconds. Keys that are 0 stay."""
    names = [name for name in deviations if keys[name] > 0]
    recipes, measured = [recipe for recipe, _ in steps], np.log([step_s for _, step_s in steps])
    start = np.log([keys[name] for name in names])
    spread = np.array([deviations[name] for name in names])
    at = start.copy()
    for _ in range(ROUNDS):
        now = _log_steps(_moved(keys, names, at), recipes)
        slopes = np.stack([_slope(keys, names, at, place, recipes, now) for place in range(len(names))], axis=1)
        weighted = slopes * spread**2
        gain = weighted.T @ np.linalg.inv(weighted @ slopes.T + STEP_DEVIATION**2 * np.eye(len(recipes)))
        at = start + gain @ (measured - now + slopes @ (at - start))
    return _moved(keys, names, at)


def _slope(
    keys: Mapping[str, float], names: Sequence[str], at: Floats, place: int, recipes: Sequence[Recipe], now: Floats
) -> Floats:
    """Returns the derivative of the log steps by one key's log, [R], away from a bound that the key is at."""
    for sign in (1.0, -1.0):
        ahead = at.copy()
        ahead[place] += sign * DERIVATIVE_STEP
        moved = _moved(keys, names, ahead)
        if moved[names[place]] != _moved(keys, names, at)[names[place]]:
            return (_log_steps(moved, recipes) - now) / (sign * DERIVATIVE_STEP)
    return np.zeros(len(recipes))


def _moved(keys: Mapping[str, float], names: Sequence[str], at: Floats) -> dict[str, float]:
    return {**keys, **{name: bounded(name, float(np.exp(log))) for name, log in zip(names, at, strict=True)}}


def _log_steps(keys: Mapping[str, float], recipes: Sequence[Recipe]) -> Floats:
    machine = machine_of(keys)
    return np.log([simulated_step_s(recipe, machine) for recipe in recipes])
