"""Measures the accuracy of the estimates: every figure the documentation claims of them.

    python -m benchmarks.estimate_accuracy memory [--facts DIR] [--write]
    python -m benchmarks.estimate_accuracy time [--facts DIR] [--write]

`--write` rewrites the tables that every estimate quotes, in `trainer/estimate/memory` and `trainer/estimate/time`:
`memory_calibration.csv`; `time_calibration.csv` and the fitted values of `constants.csv` (some minutes).
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from benchmarks.fit_probability import print_fits, read_reserved
from benchmarks.golden_runs import golden_runs
from benchmarks.memory_accuracy import (
    LARGE_GIB,
    Judged,
    calibration,
    contradicting,
    coverage,
    error_by_rank,
    fit_all,
    groups,
    judge,
    short,
)
from benchmarks.places import DATA, data_file
from benchmarks.published_memory import Published, breakdown, deepseek_v3, peaks, savings
from benchmarks.published_runs import Run, cells, read_pairs, read_runs
from benchmarks.time_accuracy import (
    FAMILIES,
    NOMINAL,
    JudgedRuns,
    accuracy,
    baseline,
    judge_runs,
    pair_spread,
    rank_correlations,
)
from benchmarks.time_accuracy import (
    coverage as time_coverage,
)
from benchmarks.time_accuracy import groups as time_groups
from benchmarks.time_fit import write_constants
from trainer.estimate.candidates import Floats, table
from trainer.estimate.memory.estimate import memory_of

TABLES = Path(__file__).parents[1] / "trainer" / "estimate"
CALIBRATION = TABLES / "memory" / "memory_calibration.csv"
PEERS = (
    "published peers: Primus 7.4 % mean over 4 rows, one of them MoE; SimuMax -13.5 to +0.1 %; Calculon 3.65 % (dense)"
)
WORST = 0.08  # runs with a larger error are printed one by one
SPEED_ROWS = 100_000
LONG = 16384  # tokens of a sequence that counts as long


def memory(facts: Path, *, write: bool) -> None:
    console = Console(width=150)
    runs = list(golden_runs(data_file("golden_runs.csv", folder=facts)))
    left_out = Counter(run.left_out for run in runs if run.left_out)
    console.print(f"{len(runs)} measured runs; left out: " + ", ".join(f"{n} {why}" for why, n in left_out.items()))
    by_rank = error_by_rank(runs)
    said = ", ".join(f"{name} {value:.1f} %" for name, value in by_rank.items())
    console.print(f"median |error| of pipelined runs by the rank taken for the measured one: {said}")
    fit = fit_all(runs)
    console.print(
        f"fitted: workspaces {1024 * fit.blas_workspace:.0f} MiB, slack {fit.slack:.3f} GiB, expected imbalance "
        f"{fit.expected_imbalance:.2f}, at most {fit.imbalance:.2f}, margin {fit.margin:.3f}"
    )
    for run in contradicting([run for run in runs if run.recipe]):
        console.print(f"judged apart, contradicts runs of its recipe: {run.case} {run.platform}")
    judged = judge(runs)
    moe, dense = ([each for each in judged if each.run.is_moe is wanted] for wanted in (True, False))
    for name, group in (("MoE", moe), ("dense", dense)):
        _print_group(console, name, group)
    _print_rows(console, f"runs above {LARGE_GIB:.0f} GiB", [each for each in judged if each.measured_gib > LARGE_GIB])
    _print_rows(console, f"errors above {WORST:.0%}", [each for each in judged if abs(each.error) > WORST])
    _print_features(console, judged)
    by_family = judge(runs, left_out=lambda run: run.family)
    _print_families(console, by_family)
    reserved = read_reserved(data_file("reserved_memory.csv", folder=facts))
    print_fits(console, judged, by_family, reserved)
    for title, rows in (
        ("DeepSeek-V3, BF16, PP4 VPP4 EP64, a middle rank", breakdown()),
        ("published savings on DeepSeek-V3, the same rank", savings()),
        ("published peaks, used for nothing else", list(peaks())),
    ):
        _print_published(console, title, rows)
    console.print(f"{_rows_per_s():,.0f} estimates a second on one core, {SPEED_ROWS:,} layouts of DeepSeek-V3 at once")
    if write:
        _write(judged)


def _print_group(console: Console, name: str, judged: Sequence[Judged]) -> None:
    found, (held, above) = calibration(judged), coverage(judged)
    console.print(
        f"{name}: {found.rows} runs of {found.cases} cases, peak |error| median {found.median_pct:.1f} %, "
        f"90th percentile {found.p90_pct:.1f} %; bound holds in {held:.1%} of the cases left out ({found.cases} cases "
        f"certify {found.cases / (found.cases + 1):.1%}), {above:.1%} above the measurement (median)"
    )
    resting = 100 * np.abs([each.resting / (each.run.resting_bytes / 2**30) - 1 for each in judged])
    moving = [(each.peak - each.resting) / ((each.run.peak_bytes - each.run.resting_bytes) / 2**30) for each in judged]
    errors = 100 * np.abs(np.array(moving) - 1)
    console.print(
        f"  at rest (weights, gradients, optimizer, buffers): median {np.median(resting):.1f} %, 90th percentile "
        f"{np.percentile(resting, 90):.1f} %; moving (activations, loss, backward): median {np.median(errors):.1f} %, "
        f"90th percentile {np.percentile(errors, 90):.1f} %"
    )


def _print_rows(console: Console, title: str, judged: Sequence[Judged]) -> None:
    columns = [Column(name, justify="right") for name in ("measured GiB", "estimate", "error", "bound")]
    grid = Table("case", "platform", *columns, box=None, title=title, title_justify="left")
    for each in sorted(judged, key=lambda each: -each.measured_gib):
        figures = (f"{each.measured_gib:.2f}", f"{each.peak:.2f}", f"{each.error:+.1%}", f"{each.upper:.2f}")
        grid.add_row(each.run.case[:90], each.run.platform, *figures)
    console.print(grid)


def _print_features(console: Console, judged: Sequence[Judged]) -> None:
    columns = [Column(name, justify="right") for name in ("runs", "cases", "median %", "p90 %", "largest GiB")]
    grid = Table("group", *columns, box=None, title="calibration", title_justify="left")
    for name, found in groups(judged).items():
        grid.add_row(name, *(str(value) for value in asdict(found).values()))
    console.print(grid)


def _print_families(console: Console, judged: Sequence[Judged]) -> None:
    for family in sorted({each.run.family for each in judged}):
        group = [each for each in judged if each.run.family == family]
        (held, above), cases = coverage(group), len({each.run.case for each in group})
        console.print(
            f"{family} left out as a whole: bound holds in {held:.1%} of its {cases} cases, {above:.1%} above the "
            f"measurement (median), at most {short(group):.3f} GiB short"
        )


def _print_published(console: Console, title: str, rows: Sequence[Published]) -> None:
    columns = [Column(name, justify="right") for name in ("published GiB", "ours", "error")]
    grid = Table("what", *columns, "source", "why, or what was assumed", box=None, title=title, title_justify="left")
    for row in rows:
        grid.add_row(row.what, f"{row.published:.1f}", f"{row.ours:.1f}", f"{row.error:+.1%}", row.source, row.because)
    console.print(grid)


def _rows_per_s() -> float:
    """Returns estimates per second over random layouts of one model, the split of layers over stages included."""
    random = np.random.default_rng(0)
    sizes = {"tensor": (1, 2, 4), "pipeline": (1, 2, 4, 8, 16), "expert": (8, 16, 32, 64), "context": (1, 2, 4)}
    columns = {
        f"{name}_{'parallel' if name == 'context' else 'model_parallel'}_size": random.choice(
            values, SPEED_ROWS
        ).tolist()
        for name, values in sizes.items()
    }
    columns["recompute_granularity"] = random.choice(np.array([None, "selective", "full"]), SPEED_ROWS).tolist()
    base = deepseek_v3().replace({"pipeline_model_parallel_layout": None})
    rows = table(base, columns)
    start = time.perf_counter()
    memory_of(rows)
    return SPEED_ROWS / (time.perf_counter() - start)


def _write(judged: Sequence[Judged]) -> None:
    _write_rows(CALIBRATION, [{"group": name, **asdict(found)} for name, found in groups(judged).items()])


def step_time(facts: Path, *, write: bool) -> None:
    console = Console(width=150)
    runs, left_out = read_runs(facts=facts)
    console.print(
        f"{len(runs)} published runs of {len({run.cell for run in runs})} cells (a model on a GPU); left out:"
    )
    for why, count in Counter(left_out).most_common():
        console.print(f"  {count:4} {why}", highlight=False)
    # constants are fitted to matched pairs too, but errors are not computed on them
    found = judge_runs(runs, read_pairs(facts=facts))
    errors = {
        "cell left out": found.held_out,
        "fitted": found.fitted,
        "table": found.table,
        "baseline": baseline(found.runs),
    }
    _print_accuracy(console, found.runs, errors)
    console.print(PEERS, highlight=False)
    _print_cells(console, found.runs, found.held_out)
    pairs, width = pair_spread(found.runs, found.held_out)
    console.print(f"ratio of two recipes of one cell, {pairs:,} pairs of runs: 90 % of the errors within {width:.1%}")
    _print_long(console, found)
    _print_apart(console, found)
    _print_pairs(console, found)
    if write:
        _write_rows(
            TABLES / "time" / "time_calibration.csv",
            [{"group": name, **asdict(each)} for name, each in time_groups(found.runs, found.held_out).items()],
        )
        write_constants(TABLES / "time" / "constants.csv", found.values)


def _print_accuracy(console: Console, runs: Sequence[Run], errors: dict[str, Floats]) -> None:
    names = ("runs", "median", "p90", "bias", "rank correlation", f"in {NOMINAL} %")
    columns = [Column(name, justify="right") for name in names]
    table = Table("", "constants", *columns, box=None, title="|error| of TFLOPS/GPU", title_justify="left")
    for kind in (*FAMILIES, "all"):
        chosen = np.array([kind in (run.family, "all") for run in runs])
        for name, each in errors.items():
            found = accuracy([run for run, kept in zip(runs, chosen, strict=True) if kept], each[chosen])
            rank = "" if found.rank_correlation is None else f"{found.rank_correlation:.2f}"
            held = f"{time_coverage(runs, each, chosen):.0%}" if name == "cell left out" else ""
            figures = (f"{found.median:.1%}", f"{found.p90:.1%}", f"{found.bias:+.1%}", rank, held)
            table.add_row(kind, name, str(found.rows), *figures)
    console.print(table)


def _print_cells(console: Console, runs: Sequence[Run], errors: Floats) -> None:
    columns = [Column(name, justify="right") for name in ("runs", "median error", "worst", "rank correlation")]
    table = Table("cell, left out", *columns, box=None)
    ranks, at = dict(rank_correlations(runs, errors)), {run.row: index for index, run in enumerate(runs)}
    for cell, members in cells(list(runs)):
        relative = np.expm1([errors[at[run.row]] for run in members])
        worst = relative[np.argmax(np.abs(relative))]
        rank = f"{ranks[cell]:.2f}" if cell in ranks else ""
        table.add_row(cell, str(len(members)), f"{np.median(relative):+.1%}", f"{worst:+.1%}", rank)
    console.print(table)


def _print_long(console: Console, found: JudgedRuns) -> None:
    long = [index for index, run in enumerate(found.runs) if run.recipe.training.seq_length >= LONG]
    relative = np.expm1(found.held_out[long])
    named = ", ".join(f"{found.runs[i].row} {each:+.1%}" for i, each in zip(long, relative, strict=True))
    console.print(f"sequences of {LONG:,} tokens or more, median {np.median(np.abs(relative)):.1%}: {named}")


def _print_apart(console: Console, found: JudgedRuns) -> None:
    for run, error in zip(found.apart, np.expm1(found.apart_errors), strict=True):
        said = f"{run.row} {run.cell}, {run.release}: {run.model_tflops_per_gpu:,.0f} TFLOPS, {error:+.0%} by the model"
        console.print(f"judged apart, contradicts another run: {said}", highlight=False)


def _print_pairs(console: Console, found: JudgedRuns) -> None:
    """Prints matched A/B measurements: how much faster, measured and by the model."""
    for index in range(0, len(found.pairs), 2):
        before, after = found.pairs[index : index + 2]
        measured = after.tokens_per_s_per_gpu / before.tokens_per_s_per_gpu - 1
        ours = (1 + measured) * float(np.exp(found.pair_errors[index + 1] - found.pair_errors[index])) - 1
        name = before.row.split()[0]
        console.print(f"{name}: EP overlap gives {measured:+.1%} measured, {ours:+.1%} by the model", highlight=False)


def _write_rows(path: Path, rows: Sequence[dict[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["memory", "time"])
    parser.add_argument("--facts", type=Path, default=DATA, help="the folder of the tables; default benchmarks/data")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    {"memory": memory, "time": step_time}[given.part](given.facts, write=given.write)


if __name__ == "__main__":
    main()
