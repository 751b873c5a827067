"""Measures how far the simulated cluster, with the default machine, differs from published runs.

    python -m benchmarks.simulation_accuracy [--facts DIR] [--fit] [--write]

Every cell (a model on a GPU) is predicted from rates fitted to the other cells. Runs that contradict each other are
judged apart and not fitted; hybrids are left out. `--fit` fits `rates.csv` again (some minutes), `--write` writes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from benchmarks.places import DATA
from benchmarks.published_runs import Run, cells, contradicting, read_pairs, read_runs
from benchmarks.time_accuracy import accuracy, rank_correlations
from benchmarks.time_fit import Fit, LinearizedFit, leave_one_cell_out, write_constants
from trainer.engines.simulated.rates import rate_table
from trainer.engines.simulated.step import Simulation
from trainer.estimate.candidates import Floats
from trainer.recipe.machine import Machine

RATES = Path(__file__).parents[1] / "trainer" / "engines" / "simulated" / "rates.csv"
STEPS = 6
WANTED = "wanted of MoE: median 9 %, p90 25 %"


class ReadRates(dict[str, float]):
    """Rates that record which of them a simulation reads."""

    def __init__(self, rates: Mapping[str, float]) -> None:
        super().__init__(rates)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.read.add(name)
        return super().__getitem__(name)


def simulated_log_rate(run: Run, rates: Mapping[str, float]) -> float:
    """Returns log tokens/s/GPU of one run on the default machine."""
    simulation = Simulation(run.recipe, Machine(), values=rates, release=run.release)
    return float(np.log(simulation.tokens_per_s_per_gpu))


class Simulations:
    """Predicts runs by simulations, each recipe once for every set of the rates that it reads."""

    def __init__(self, pool: Pool, rates: Mapping[str, float]) -> None:
        self._pool, self._rates = pool, rates
        self._read: dict[tuple[str, str], list[str]] = {}
        self._known: dict[tuple[Any, ...], float] = {}

    def __call__(self, runs: Sequence[Run], sets: Sequence[Mapping[str, float]]) -> Floats:
        """Returns log tokens/s/GPU of every run for each set of rates, [K, runs]."""
        recipes = [(run.recipe.digest(), run.release) for run in runs]
        for run, recipe in zip(runs, recipes, strict=True):
            if recipe not in self._read:
                self._read[recipe] = _read_rates(run, self._rates)
        keys = [[(*recipe, *(rates[name] for name in self._read[recipe])) for recipe in recipes] for rates in sets]
        wanted = {
            key: (run, rates)
            for rates, row in zip(sets, keys, strict=True)
            for run, key in zip(runs, row, strict=True)
            if key not in self._known
        }
        found = self._pool.starmap(simulated_log_rate, wanted.values(), chunksize=8)
        self._known |= dict(zip(wanted, found, strict=True))
        return np.array([[self._known[key] for key in row] for row in keys])


def _read_rates(run: Run, rates: Mapping[str, float]) -> list[str]:
    watched = ReadRates(rates)
    simulated_log_rate(run, watched)
    return sorted(watched.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=Path, default=DATA)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    console = Console(width=130)
    every = [run for run in read_runs(facts=asked.facts)[0] if run.family != "hybrid"]
    apart = contradicting(every)
    runs = [run for run in every if run not in apart]
    table = rate_table()
    with get_context("fork").Pool(2) as pool:
        predict = Simulations(pool, {name: row.value for name, row in table.items()})
        fit = Fit([*runs, *read_pairs(facts=asked.facts)], rows=list(table.values()), predict=predict)
        theta = fit.start
        if asked.fit:
            theta = fit.solve(theta, np.ones(len(fit.runs)), steps=STEPS)
        judged = slice(len(runs))
        fitted = fit.errors(theta)
        held_out = leave_one_cell_out(fit, theta, along=LinearizedFit(fit, theta))
        errors_apart = predict(apart, [fit.values(theta)])[0] - np.log([run.tokens_per_s_per_gpu for run in apart])
    _print(console, runs, {"cell left out": held_out[judged], "fitted": fitted[judged]})
    _print_cells(console, runs, held_out[judged])
    _print_runs(console, "matched pairs", fit.runs[len(runs) :], fitted[len(runs) :])
    _print_runs(console, "judged apart: they contradict each other", apart, errors_apart)
    if asked.fit:
        _print_rates(console, fit, theta)
    if asked.write:
        write_constants(RATES, fit.values(theta))


def _print(console: Console, runs: Sequence[Run], errors: Mapping[str, Floats]) -> None:
    columns = [Column(name, justify="right") for name in ("runs", "median", "p90", "bias", "rank correlation")]
    table = Table("", "rates", *columns, box=None, title=f"|error| of step time; {WANTED}", title_justify="left")
    for name, error in errors.items():
        for who, kept in (("all", [True] * len(runs)), ("MoE", [run.family == "MoE" for run in runs])):
            chosen = [run for run, inside in zip(runs, kept, strict=True) if inside]
            found = accuracy(chosen, error[np.array(kept)])
            rank = "" if found.rank_correlation is None else f"{found.rank_correlation:.2f}"
            table.add_row(
                who, name, str(found.rows), f"{found.median:.1%}", f"{found.p90:.1%}", f"{found.bias:+.1%}", rank
            )
    console.print(table)


def _print_cells(console: Console, runs: Sequence[Run], errors: Floats) -> None:
    ranks = dict(rank_correlations(runs, errors))
    at = {run.row: index for index, run in enumerate(runs)}
    columns = [Column(name, justify="right") for name in ("runs", "median |error|", "bias", "rank correlation")]
    table = Table("cell, left out", *columns, box=None)
    for cell, members in cells(list(runs)):
        own = np.expm1(errors[[at[run.row] for run in members]])
        rank = f"{ranks[cell]:.2f}" if cell in ranks else ""
        table.add_row(cell, str(len(members)), f"{np.median(np.abs(own)):.1%}", f"{np.median(own):+.1%}", rank)
    console.print(table)


def _print_runs(console: Console, title: str, runs: Sequence[Run], errors: Floats) -> None:
    console.print(title)
    for run, error in zip(runs, errors, strict=True):
        console.print(f"  {run.row:11} {run.cell:24} {np.expm1(error):+.1%}", highlight=False)


def _print_rates(console: Console, fit: Fit, theta: Floats) -> None:
    for row, value in zip(fit.fitted, np.exp(theta), strict=True):
        console.print(f"  {row.name:28} {row.prior:8.4g} → {value:8.4g}", highlight=False)


if __name__ == "__main__":
    main()
