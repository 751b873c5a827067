"""Halves and doubles the constants of the tuner, in groups or singly, on eight development scenarios.

    python -m benchmarks.policy.screen [--groups choice,fit | --names phase_share,…] [--scenarios 0,3] [--csv FILE]

Each variation runs the scenarios of `wide.py` with the product's own loop and probe. *changed* counts the studies
whose bursts differ from those of the table as it is: a constant that changes none in either direction decides nothing.
*after 1*, *after 3* are the mean change of the log of the exported recipe's true throughput. The first rows are the
table as it is with other noise: what a difference between two variations is worth. Probabilities and shares of a half
or more are halved and doubled in their odds, so that they stay below 1; whole numbers stay whole.
"""

from __future__ import annotations

import argparse
import csv
import math
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from policies.constants import Constant, constants

GROUPS = ("choice", "fit", "effort", "time", "memory", "probe", "numerical")
AFTER = (1, 3)
SCENARIOS = 8
STRIDE = 7  # every seventh development scenario: 7 shares no factor with their ten traits
FACTORS = (0.5, 2.0)
OTHER_NOISE = (1, 2)
MISSING = 0.5  # share of the other study's throughput that counts where a study has no recipe
COLUMNS = (
    "varied",
    "factor",
    "noise",
    "scenario",
    "changed",
    *(f"log_change_after_{bursts}" for bursts in AFTER),
    "ooms",
)


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Constants to change. `factor` is 1 for the table as it is, which then runs with noise number `noise`."""

    title: str
    names: tuple[str, ...] = ()
    factor: float = 1.0
    noise: int = 0


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Bursts of one study after the base's: (true tokens/s/GPU exported, GPU-hours, out of memory) of each; `start` is
    the throughput before them."""

    scenario: str
    start: float
    bursts: tuple[tuple[float, float, bool], ...]

    def after(self, bursts: int) -> float:
        """Returns the exported throughput after so many bursts; 0 if no recipe has run."""
        counted = self.bursts[:bursts]
        return counted[-1][0] if counted else self.start

    @property
    def ooms(self) -> int:
        return sum(oom for _, _, oom in self.bursts)


def moved(value: float, factor: float) -> float:
    """Returns a constant times the factor: shares and probabilities in [0.5, 1) in their odds, whole numbers whole."""
    if 0.5 <= value < 1:
        odds = value / (1 - value) * factor
        return odds / (1 + odds)
    return float(max(1, round(value * factor))) if value == int(value) else value * factor


def variations(groups: Sequence[str], names: Sequence[str], table: Mapping[str, Constant]) -> list[Variation]:
    """Returns a variation per factor for each name, or for each group where no names are given.

    Raises KeyError if the table has no such group or name.
    """
    sets: dict[str, tuple[str, ...]]
    if names:
        sets = {name: (name,) for name in names}
    else:
        sets = {group: tuple(name for name, row in table.items() if row.group == group) for group in groups}
    unknown = [title for title, members in sets.items() if not members or any(name not in table for name in members)]
    if unknown:
        raise KeyError(f"no constants: {', '.join(unknown)}")
    return [Variation(title=title, names=sets[title], factor=factor) for title in sets for factor in FACTORS]


def trajectories(variation: Variation, numbers: Sequence[int]) -> list[Trajectory]:
    """Returns the trajectory of the scenarios with these numbers. Call it once in a fresh process, before anything
    reads a constant."""
    table = constants()
    for name in variation.names:
        table[name] = replace(table[name], value=moved(table[name].value, variation.factor))
    # modules of the tuner read their constants when they are imported
    from benchmarks.policy.ground import Ground
    from benchmarks.policy.tuned import tuned_by
    from benchmarks.policy.wide import wide_scenarios
    from policies.search.sampler import SURROGATE

    warnings.simplefilter("ignore")  # optuna warns of its experimental parts
    developed = [scenario for scenario in wide_scenarios() if not scenario.unseen]
    found = []
    for number in numbers:
        ground = Ground(developed[STRIDE * number % len(developed)], counts_fitting=False)
        study = tuned_by(SURROGATE)(ground.seeded(variation.noise), max(AFTER))
        bursts = tuple((burst.tuned, burst.gpu_hours, burst.oom) for burst in study.paid)
        found.append(Trajectory(scenario=study.scenario, start=study.start, bursts=bursts))
    return found


def compared(trajectory: Trajectory, base: Trajectory) -> tuple[bool, list[float]]:
    """Returns whether any burst differs, and the log change of the exported throughput after each of AFTER.

    A recipe that is missing on one side counts as MISSING of the other's throughput.
    """
    rates = [(trajectory.after(bursts), base.after(bursts)) for bursts in AFTER]
    logs = [math.log((one or two * MISSING or 1) / (two or one * MISSING or 1)) for one, two in rates]
    return trajectory.bursts != base.bursts, logs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default=",".join(GROUPS), help="groups of constants, by commas")
    parser.add_argument("--names", default="", help="single constants instead, by commas")
    parser.add_argument("--scenarios", default=",".join(map(str, range(SCENARIOS))), help="numbers, by commas")
    parser.add_argument("--processes", type=int, default=2, help="variations at a time")
    parser.add_argument("--csv", type=Path, default=None, help="write every study here")
    options = parser.parse_args()
    numbers = [int(number) for number in options.scenarios.split(",")]
    names = tuple(name for name in options.names.split(",") if name)
    asked = [
        Variation(title="as it is"),
        *(Variation(title="as it is", noise=noise) for noise in OTHER_NOISE),
        *variations(options.groups.split(","), names, constants()),
    ]
    rows = []
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        base: list[Trajectory] = []
        for variation, found in zip(asked, pool.map(trajectories, asked, repeat(numbers)), strict=True):
            base = base or found
            each = [compared(trajectory, first) for trajectory, first in zip(found, base, strict=True)]
            print(_line(variation, found, each), flush=True)
            rows += [
                (variation.title, variation.factor, variation.noise, one.scenario, int(changed), *logs, one.ooms)
                for one, (changed, logs) in zip(found, each, strict=True)
            ]
    if options.csv:
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])


def _line(variation: Variation, found: Sequence[Trajectory], each: Sequence[tuple[bool, list[float]]]) -> str:
    title = f"{variation.title} x {variation.factor:g}" if variation.names else f"{variation.title}, {variation.noise}"
    means = [sum(logs[number] for _, logs in each) / len(each) for number in range(len(AFTER))]
    shown = ", ".join(f"after {bursts} {mean:+.2%}" for bursts, mean in zip(AFTER, means, strict=True))
    changed, ooms = sum(changed for changed, _ in each), sum(trajectory.ooms for trajectory in found)
    return f"{title:40} changed {changed} of {len(each)}, {shown}, {ooms} OOM"


if __name__ == "__main__":
    main()
