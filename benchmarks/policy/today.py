"""Reads and writes the kept figures of a policy, for comparison with another one: its curve on every scenario."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from benchmarks.places import table_rows
from benchmarks.policy.best import SIMULATION
from benchmarks.policy.scenarios import Scenario
from benchmarks.policy.study import FitCounts, Paid, Predicted, Study

COLUMNS = (
    *("scenario", "recipe", "simulation", "contender", "world", "start", "paid", "predicted", "fitting"),
    *("ended", "cpu_s", "seed", "knobs_changed"),
)

PREDICTED = tuple(field.name for field in fields(Predicted))
COUNTED = tuple(field.name for field in fields(FitCounts))


def write_today(table: Path, chosen: Iterable[Scenario], studies: Iterable[Study]) -> None:
    """Writes one row per study.

    `paid` is a list of [GPU-hours, out of memory, tuned], `predicted` of [gain, bound, true, low, trial], `fitting`
    of [fit, refused, admitted, died].
    """
    digests = {scenario.name: scenario.recipe.digest() for scenario in chosen}
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for study in studies:
            paid = [[round(burst.gpu_hours, 3), int(burst.oom), round(burst.tuned, 2)] for burst in study.paid]
            predictions = [[_short(value) for value in asdict(each).values()] for each in study.predicted]
            fitting = [list(asdict(each).values()) for each in study.fitting]
            figures = [
                study.contender,
                study.world,
                round(study.start, 2),
                *map(json.dumps, (paid, predictions, fitting)),
            ]
            key = [study.scenario, digests[study.scenario], SIMULATION]
            ends = [study.ended, round(study.cpu_s, 1), study.seed, study.knobs_changed]
            writer.writerow([*key, *figures, *ends])


def read_today(table: Path, chosen: Iterable[Scenario]) -> list[Study]:
    """Returns the kept studies of scenarios whose recipe and simulation are unchanged."""
    if not table.exists():
        return []
    keys = {(scenario.name, scenario.recipe.digest(), SIMULATION) for scenario in chosen}
    rows = [row for row in table_rows(table) if (row["scenario"], row["recipe"], row["simulation"]) in keys]
    return [_study(row) for row in rows]


def _study(row: dict[str, str]) -> Study:
    paid = [Paid(gpu_hours=hours, oom=bool(oom), tuned=tuned) for hours, oom, tuned in json.loads(row["paid"])]
    predictions = [Predicted(**dict(zip(PREDICTED, each, strict=False))) for each in json.loads(row["predicted"])]
    fitting = [FitCounts(**dict(zip(COUNTED, each, strict=True))) for each in json.loads(row.get("fitting") or "[]")]
    return Study(
        contender=f"{row['contender']} kept",
        scenario=row["scenario"],
        world=int(row["world"]),
        start=float(row["start"]),
        paid=tuple(paid),
        predicted=tuple(predictions),
        fitting=tuple(fitting),
        ended=row["ended"],
        cpu_s=float(row["cpu_s"]),
        seed=int(row["seed"]),
        knobs_changed=int(row["knobs_changed"]),
    )


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
