"""Figures of studies on many scenarios: one row per contender, and a CSV row per study."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Column, Table

from benchmarks.policy.study import Predicted, Study

AFTER = (1, 3, 5, 10, 20)  # bursts
GOAL = 0.95  # share of the best known throughput
NEAR = 0.97  # share of the best known throughput until which bursts are counted
LOW = 0.10  # quantile
EARLY = (3, 4)  # trials


@dataclass(frozen=True, kw_only=True)
class Row:
    """Figures of one contender over its scenarios. `tuned` is {bursts: (median, 10th percentile)} of tuned/best."""

    name: str
    tuned: dict[int, tuple[float, float]]
    ooms: float  # mean out-of-memory bursts per study
    most_ooms: int
    without: int  # studies that end without a recipe
    bursts: float  # median bursts until NEAR of the best throughput; inf if most studies never reach it
    reached: float  # share of the studies that reach GOAL of the best throughput and keep it
    hours: float  # median GPU-hours until GOAL over the studies that reach it; nan if none does
    cluster_hours: float  # `hours` as hours of the whole cluster
    predicted: int
    error: float  # median |log| of predicted over true throughput; nan without predictions
    early: float  # `error` of the third and fourth trial
    covered: float  # share of true gains within their bound
    inside: float  # share of true gains within their 90 % interval
    refused: float  # of the recipes that fit, the share predicted not to
    died: float  # of the recipes predicted to fit, the share that runs out of memory
    cpu_s: float  # CPU seconds per study
    knobs_changed: float  # median number of knobs that differ between the base and the exported recipe


def rows_of(studies: Iterable[Study], best: Mapping[str, float], budget: int) -> list[Row]:
    """Returns one row per contender, in order of appearance."""
    by_name: dict[str, list[Study]] = {}
    for study in studies:
        by_name.setdefault(study.contender, []).append(study)
    return [_row(name, found, best, budget) for name, found in by_name.items()]


def ratios(studies: Sequence[Study], best: Mapping[str, float], bursts: int) -> list[float]:
    return [study.tuned_after(bursts) / best[study.scenario] for study in studies]


def bursts_shown(budget: int) -> list[int]:
    return [bursts for bursts in AFTER if bursts <= budget]


def _row(name: str, studies: Sequence[Study], best: Mapping[str, float], budget: int) -> Row:
    shares = {bursts: ratios(studies, best, bursts) for bursts in bursts_shown(budget)}
    hours = [(study.hours_to(GOAL * best[study.scenario]), study.world) for study in studies]
    arrived = [(spent, spent / world) for spent, world in hours if spent < math.inf]
    predicted = [each for study in studies for each in study.predicted]
    counts = [count for study in studies for count in study.fitting]
    return Row(
        name=name,
        tuned={bursts: (float(np.median(of)), float(np.quantile(of, LOW))) for bursts, of in shares.items()},
        ooms=float(np.mean([study.ooms for study in studies])),
        most_ooms=max(study.ooms for study in studies),
        without=sum(not study.has_recipe for study in studies),
        bursts=float(np.median([study.bursts_to(NEAR * best[study.scenario]) for study in studies])),
        reached=len(arrived) / len(studies),
        hours=float(np.median([spent for spent, _ in arrived])) if arrived else math.nan,
        cluster_hours=float(np.median([spent for _, spent in arrived])) if arrived else math.nan,
        predicted=len(predicted),
        error=_error(predicted),
        early=_error([each for each in predicted if each.trial in EARLY]),
        covered=_covered(predicted),
        inside=_share(each.inside for each in predicted if each.low is not None),
        refused=sum(each.refused for each in counts) / max(sum(each.fit for each in counts), 1) if counts else math.nan,
        died=sum(each.died for each in counts) / max(sum(each.admitted for each in counts), 1) if counts else math.nan,
        cpu_s=float(np.mean([study.cpu_s for study in studies])),
        knobs_changed=float(np.median([study.knobs_changed for study in studies])),
    )


def _error(predicted: Sequence[Predicted]) -> float:
    return float(np.median([abs(each.error) for each in predicted])) if predicted else math.nan


def _covered(predicted: Sequence[Predicted]) -> float:
    return _share(each.covered for each in predicted if each.bound is not None)


def _share(held: Iterable[bool]) -> float:
    every = list(held)
    return float(np.mean(every)) if every else math.nan


def table_of(rows: Sequence[Row], title: str) -> Table:
    """Returns median/10th percentile of tuned/best, and the other figures of each row."""
    shown = list(rows[0].tuned) if rows else []
    last = (
        "OOM (most)",
        "no recipe",
        f"bursts to {NEAR:.0%}",
        f"to {GOAL:.0%}",
        "GPU-h",
        "h",
        "error",
        "3-4",
        "in bound",
        "90 %",
        "refused",
        "died",
        "CPU s",
        "knobs",
    )
    columns = [Column(str(name), justify="right", no_wrap=True) for name in (*shown, *last)]
    table = Table("tuned/best after bursts", *columns, box=None, title=title, title_justify="left")
    for row in rows:
        curve = [f"{median:.3f}/{low:.3f}" for median, low in row.tuned.values()]
        table.add_row(
            row.name,
            *curve,
            f"{row.ooms:.2f} ({row.most_ooms})",
            str(row.without),
            "never" if math.isinf(row.bursts) else f"{row.bursts:.0f}",
            f"{row.reached:.0%}",
            _number(row.hours, "{:,.1f}"),
            _number(row.cluster_hours, "{:.2f}"),
            _number(row.error, "{:.3f}"),
            _number(row.early, "{:.3f}"),
            _number(row.covered, "{:.0%}"),
            _number(row.inside, "{:.0%}"),
            _number(row.refused, "{:.1%}"),
            _number(row.died, "{:.1%}"),
            f"{row.cpu_s:.1f}",
            f"{row.knobs_changed:.0f}",
        )
    return table


def _number(value: float, form: str) -> str:
    return "" if math.isnan(value) else form.format(value)


def write_studies(file: Path, studies: Iterable[Study], best: Mapping[str, float], budget: int) -> None:
    """Writes a CSV row for each study; throughputs are true tokens/s/GPU."""
    shown = bursts_shown(budget)
    columns = ["scenario", "contender", "best", "base", *(f"tuned_{bursts}" for bursts in shown)]
    columns += ["bursts", "ooms", "gpu_hours", f"gpu_hours_to_{GOAL:.0%}", "ended"]
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        for study in studies:
            top = best[study.scenario]
            tuned = [f"{study.tuned_after(bursts):.1f}" for bursts in shown]
            spent = sum(burst.gpu_hours for burst in study.paid)
            counted = [len(study.paid), study.ooms, f"{spent:.2f}", f"{study.hours_to(GOAL * top):.2f}", study.ended]
            writer.writerow([study.scenario, study.contender, f"{top:.1f}", f"{study.start:.1f}", *tuned, *counted])
