"""Measures the errors of the machine keys that a simulated probe finds, on the wide scenarios for development.

    python -m benchmarks.probe_keys [--scenarios N]

A key that differs from the published machine is compared with the machine file that `probe --machine` would write:
|log| of its value over the true one, next to that of the published machine. Seconds and GPU-hours are the probes'.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from statistics import median

from rich.console import Console
from rich.table import Column, Table

from autotune.probe.twin import twin_of_probe
from autotune.twin.translation import default_of
from benchmarks.policy.wide import wide_scenarios
from trainer.engines.simulated.probe import simulate_probe
from trainer.microbenchmarks.groups import rows_of
from trainer.recipe.machine import Machine

Errors = dict[str, list[tuple[float, float]]]  # key -> (error of the probe, error of the published machine) by scenario


def errors_of(machine: Machine, found: Machine) -> dict[str, tuple[float, float]]:
    """Returns (the probe's error, the published machine's) for every key in which the machine differs from the
    published one."""
    errors = {}
    for section in ("compute", "links", "overlap", "host", "memory"):
        true, probed = getattr(machine, section), getattr(found, section)
        for name in type(true).model_fields:
            key, value = f"{section}.{name}", getattr(true, name)
            published = default_of(key)
            if published and value and value != published:
                error = abs(math.log(max(getattr(probed, name), 1e-6) / value))
                errors[key] = error, abs(math.log(published / value))
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=10, help="so many, spread over those for development")
    options = parser.parse_args()
    every = [scenario for scenario in wide_scenarios() if not scenario.unseen]
    errors: Errors = defaultdict(list)
    seconds, hours = list[float](), list[float]()
    for scenario in every[:: max(1, len(every) // options.scenarios)]:
        played = simulate_probe(scenario.recipe, rows_of(scenario.recipe), seed=scenario.seed)
        twin = twin_of_probe(scenario.recipe, played.rows, name="probed", versions={})
        for key, pair in errors_of(scenario.machine, twin.file).items():
            errors[key].append(pair)
        seconds.append(played.seconds)
        hours.append(played.seconds * played.ranks / 3600)
    _print(Console(), errors)
    print(f"a probe: {median(seconds):.0f} s, {median(hours):.2f} GPU-hours in the median")


def _print(console: Console, errors: Errors) -> None:
    right = [Column(name, justify="right") for name in ("scenarios", "probe", "worst", "published", "worst of it")]
    table = Table("key", *right, title="|log| of a key over the true one: median and worst")
    for key, pairs in sorted(errors.items()):
        probe, published = zip(*pairs, strict=True)
        figures = (median(probe), max(probe), median(published), max(published))
        table.add_row(key, str(len(pairs)), *(f"{figure:.3f}" for figure in figures))
    console.print(table)


if __name__ == "__main__":
    main()
