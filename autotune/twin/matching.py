"""Moves keys of a simulated machine until simulated recipes have the measured steps and traced parts.

Gauss-Newton on the keys' log scale, with a prior: with K keys whose variances are S [K], M figures with errors e [M]
(log measured − log simulated), slopes J [M, K] and variances N [M], keys at `x` and the prior's at `p` become
p + S Jᵀ (J S Jᵀ + N)⁻¹ (e + J (x − p)). The slopes are computed once, the errors after every update: that of a step
from its simulation, that of a part from its first simulation, scaled by the change of the sum of its operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.twin.translation import bounded, machine_of
from trainer.engines.simulated import busy_by_rank, simulated_step_s
from trainer.recipe import Recipe

Floats = npt.NDArray[np.float64]

STEP_DEVIATION = 0.01  # log standard deviation of a measured step over its simulation on the true machine (judged)
# log standard deviation of a traced part on one rank: shapes of one kind of work differ in their rates
PART_DEVIATIONS = {
    "gemm": 0.03,
    "grouped": 0.05,
    "attention": 0.03,
    "permute": 0.1,
    "quantize": 0.1,
    "memory_bound": 0.1,
    "optimizer": 0.1,
    "ep": 0.15,
}
MIN_SHARE = 0.005  # fraction of the step; smaller parts cannot be distinguished from noise
DERIVATIVE_STEP = 0.05  # change of a key's log
UPDATES = 5


@dataclass(frozen=True, kw_only=True)
class Part:
    """Seconds of one kind of work in a traced step of a pipeline rank, measured and simulated."""

    pipeline_rank: int
    work: str
    measured_s: float
    simulated_s: float


@dataclass(frozen=True, kw_only=True)
class Observed:
    """One recipe, as it is simulated, with its measured step and its traced parts."""

    recipe: Recipe
    step_s: float
    parts: tuple[Part, ...]


def matched(
    keys: Mapping[str, float], prior: Mapping[str, float], spreads: Mapping[str, float], observed: Sequence[Observed]
) -> dict[str, float]:
    """Returns the keys after UPDATES steps.

    `keys`: those simulated so far; `prior`: those before any match; `spreads`: standard deviations of the logs of the
    keys that may move.
    """
    names, found = list(spreads), dict(keys)
    start = _figures(keys, observed)
    slopes = np.stack([_slope(keys, name, observed, start) for name in names], axis=1)
    center = np.log([prior[name] for name in names])
    weighted = slopes * np.array([spreads[name] for name in names]) ** 2
    gain = weighted.T @ np.linalg.inv(weighted @ slopes.T + np.diag(_deviations(observed) ** 2))
    errors = _errors(observed, start)
    for _ in range(UPDATES):
        left = errors - _change(_figures(found, observed) - start, steps=len(observed))
        at = np.log([found[name] for name in names])
        moved = center + gain @ (left + slopes @ (at - center))
        found |= {name: bounded(name, math.exp(log)) for name, log in zip(names, moved, strict=True)}
    return found


def _figures(keys: Mapping[str, float], observed: Sequence[Observed]) -> Floats:
    """Returns the log of every step, then per part the sum of its operations over its first simulated seconds, [M]."""
    machine = machine_of(keys)
    steps = [math.log(simulated_step_s(each.recipe, machine)) for each in observed]
    parts: list[float] = []
    for each in observed:
        busy = busy_by_rank(each.recipe, machine) if each.parts else ()
        parts += [busy[part.pipeline_rank].get(part.work, 0.0) * 1e-6 / part.simulated_s for part in each.parts]
    return np.array([*steps, *parts])


def _change(figures: Floats, *, steps: int) -> Floats:
    """Returns the log change of every figure: steps are logs already, parts are relative changes."""
    change: Floats = np.concatenate([figures[:steps], np.log1p(np.maximum(figures[steps:], -0.9))])
    return change


def _slope(keys: Mapping[str, float], name: str, observed: Sequence[Observed], now: Floats) -> Floats:
    """Returns the derivatives of all figures by the log of one key, [M]; downwards if the key is at its upper bound."""
    for sign in (1.0, -1.0):
        moved = bounded(name, keys[name] * math.exp(sign * DERIVATIVE_STEP))
        if moved != keys[name]:
            slope: Floats = (_figures({**keys, name: moved}, observed) - now) / math.log(moved / keys[name])
            return slope
    return np.zeros(len(now))


def _errors(observed: Sequence[Observed], now: Floats) -> Floats:
    steps = [math.log(each.step_s) - log for each, log in zip(observed, now[: len(observed)], strict=True)]
    parts = [math.log(part.measured_s / part.simulated_s) for each in observed for part in each.parts]
    return np.array([*steps, *parts])


def _deviations(observed: Sequence[Observed]) -> Floats:
    steps = [STEP_DEVIATION] * len(observed)
    parts = [PART_DEVIATIONS[part.work] for each in observed for part in each.parts]
    return np.array([*steps, *parts])


def parts_of(
    measured: Mapping[str, float], simulated: Mapping[str, float], *, rank: int, step_s: float
) -> tuple[Part, ...]:
    """Returns the parts of a traced rank that are large enough to compare in both the measured and the simulated
    step."""
    least = MIN_SHARE * step_s
    return tuple(
        Part(pipeline_rank=rank, work=work, measured_s=measured[work], simulated_s=simulated[work])
        for work in PART_DEVIATIONS
        if min(measured[work], simulated[work]) > least
    )
