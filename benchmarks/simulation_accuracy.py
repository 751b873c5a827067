"""Measures how far the simulated cluster, with the default machine, differs from published runs.

    python -m benchmarks.simulation_accuracy [--facts DIR] [--fit] [--write]

Every cell (a model on a GPU) is predicted from rates fitted to the other cells. `--fit` fits `rates.csv` again (some
minutes), `--write` writes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from benchmarks.places import DATA
from benchmarks.published_runs import Run, cells, read_pairs, read_runs
from benchmarks.time_accuracy import accuracy, rank_correlations
from benchmarks.time_fit import Fit, Straight, leave_one_cell_out, write_constants
from trainer.engines.simulated.rates import rate_table
from trainer.engines.simulated.step import Simulation
from trainer.estimate.candidates import Floats
from trainer.recipe.machine import Machine

RATES = Path(__file__).parents[1] / "trainer" / "engines" / "simulated" / "rates.csv"
STEPS = 6
WANTED = "wanted: median 10 %, rank correlation 0.7"


def simulated_log_rate(run: Run, rates: Mapping[str, float]) -> float:
    """Returns log tokens/s/GPU of one run on the default machine."""
    simulation = Simulation(run.recipe, Machine(), values=rates, release=run.release)
    return float(np.log(simulation.tokens_per_s_per_gpu))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--facts", type=Path, default=DATA)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    console = Console(width=130)
    runs = [run for run in read_runs(facts=asked.facts)[0] if run.family != "hybrid"]
    with get_context("fork").Pool(2) as pool:

        def predicted(of: Sequence[Run], sets: Sequence[Mapping[str, float]]) -> Floats:
            each = (pool.map(partial(simulated_log_rate, rates=dict(rates)), of, chunksize=8) for rates in sets)
            return np.array(list(each))

        fit = Fit([*runs, *read_pairs(facts=asked.facts)], rows=list(rate_table().values()), predict=predicted)
        theta = fit.start
        if asked.fit:
            theta = fit.solve(theta, np.ones(len(fit.runs)), steps=STEPS)
        judged = slice(len(runs))
        fitted = fit.errors(theta)
        held_out = leave_one_cell_out(fit, theta, along=Straight(fit, theta))
    _print(console, runs, {"cell left out": held_out[judged], "fitted": fitted[judged]})
    _print_cells(console, runs, held_out[judged])
    for run, error in zip(fit.runs[len(runs) :], fitted[len(runs) :], strict=True):
        console.print(f"  {run.row:14} {np.expm1(error):+.1%}")
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
            rank = "" if found.rank is None else f"{found.rank:.2f}"
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


def _print_rates(console: Console, fit: Fit, theta: Floats) -> None:
    for row, value in zip(fit.fitted, np.exp(theta), strict=True):
        console.print(f"  {row.name:28} {row.prior:8.4g} → {value:8.4g}", highlight=False)


if __name__ == "__main__":
    main()
