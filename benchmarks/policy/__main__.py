"""Measures the tuning policy on simulated clusters, compared with the best known recipe of each.

    python -m benchmarks.policy [--only policy,plan] [--scenarios N] [--budget K] [--seeds S] [--frozen] [--refresh]
        [--keep] [--plot]

Compared are the product as it is, without its probe, with Optuna's tpe, gp and random samplers (`tune.sampler`), and
`plan`'s first choices in order. Bursts and OOMs are counted after the base's; *tuned* is the true throughput of what
`export` would write then, *best* the best known: `plan`'s finals, random recipes, hill climbing and every recipe that a
contender ran. GPU-hours are simulated; `h` are those of the whole cluster. `error` is the median |log| of predicted
over true throughput (`3-4`: of the third and fourth trial), `in bound` the share of true gains below the bound that was
given, `90 %` the share inside the interval. `refused` is the share of recipes of the ranked space that fit and were
predicted not to after 1, 3 and 10 trials, `died` of those predicted to fit that do not. `bursts to 97%` is a median
over all studies, "never" if most do not reach it; `knobs` the median number of knobs that the exported recipe changes.
`--seeds` runs each scenario so often, with other noise. `--frozen` leaves the table of best known recipes as it is, so
that two runs share it. The difference between the policy and its kept figures is printed below, with its paired
bootstrap over scenarios, for the studies that both have.

    python -m benchmarks.policy --wide [--judged]

runs the scenarios of `wide.py` instead, whose clusters differ from the tables: those for development or, with
`--judged`, those for judging, of which only figures over all are printed. *first choice* is the recipe that would run
first by the probe alone, and by the tables alone, before the recipe as given has run. *beyond* is the throughput of the
best known recipe over the best that the contenders exported.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.places import DATA, ROOT
from benchmarks.policy.best import BETTER, SIMULATION, Effort, Known, read_best, search_best, write_best
from benchmarks.policy.bootstrap import differences
from benchmarks.policy.figures import rows_of, table_of, write_studies
from benchmarks.policy.first import first_choice
from benchmarks.policy.ground import Ground
from benchmarks.policy.plot import draw
from benchmarks.policy.scenarios import Scenario, scenarios
from benchmarks.policy.searches import plan_in_order
from benchmarks.policy.study import Study
from benchmarks.policy.today import read_today, write_today
from benchmarks.policy.tuned import tuned_by
from benchmarks.policy.wide import wide_scenarios
from policies.search.sampler import SURROGATE

DOCS = ROOT / "docs"
CONTENDERS = {
    "policy": tuned_by(SURROGATE),
    "policy unprobed": tuned_by(SURROGATE, probe=False),
    **{sampler: tuned_by(sampler) for sampler in ("tpe", "gp", "random")},
    "plan": plan_in_order,
    "first choice": first_choice(probe=True),
    "first choice unprobed": first_choice(probe=False),
}
BUDGET = 20
WIDE_BUDGET = 10
WIDE_EFFORT = Effort(planned=60, drawn=30, climbs=2, rounds=4, pairs=1)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of one scenario. `best` takes account of every recipe that any contender ran, unless it is frozen."""

    scenario: Scenario
    best: Known
    studies: list[Study] = field(default_factory=list)


def play(
    scenario: Scenario,
    *,
    only: Sequence[str],
    budget: int,
    known: dict[str, Known],
    effort: Effort,
    seeds: int = 1,
    frozen: bool = False,
    counts_fitting: bool = True,
) -> Result:
    """Runs all contenders on one scenario, `seeds` times each; searches its best known recipe if the table has none.

    If `frozen`, better recipes that contenders ran do not replace it.
    """
    warnings.simplefilter("ignore")  # optuna warns of its experimental parts
    ground = Ground(scenario, counts_fitting=counts_fitting)
    if scenario.name in known:
        ground.truth(known[scenario.name].recipe(scenario))
    else:
        search_best(ground, effort)
    rate, recipe = ground.best
    studies = [CONTENDERS[name](ground.seeded(number), budget) for name in only for number in range(seeds)]
    rate, recipe = (rate, recipe) if frozen else ground.best
    changes = {name: to for name, (_, to) in scenario.recipe.diff(recipe).items()}
    return Result(scenario=scenario, best=Known(tokens_per_s_per_gpu=rate, changes=changes), studies=studies)


def play_all(chosen: Sequence[Scenario], *, known: dict[str, Known], options: argparse.Namespace) -> Iterator[Result]:
    """Yields results in the order given, `--processes` scenarios at a time."""
    asked = {"budget": options.budget, "seeds": options.seeds, "frozen": options.frozen}
    asked |= {"effort": WIDE_EFFORT if options.wide else Effort(), "counts_fitting": not options.wide}
    one = partial(play, only=[name for name in options.only.split(",") if name], known=known, **asked)
    with get_context("fork").Pool(options.processes) as pool:
        yield from pool.imap(one, chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CONTENDERS), help="contenders, by commas")
    parser.add_argument("--scenarios", type=int, default=None, help="at least so many, spread over the table")
    parser.add_argument("--wide", action="store_true", help="clusters unlike the tables")
    parser.add_argument("--judged", action="store_true", help="of those, the ones to judge by")
    parser.add_argument("--budget", type=int, default=None, help="bursts after the base's")
    parser.add_argument("--seeds", type=int, default=1, help="times that each scenario is run, with other noise")
    parser.add_argument("--processes", type=int, default=2, help="scenarios at a time")
    parser.add_argument("--frozen", action="store_true", help="keep the table of best known recipes as it is")
    parser.add_argument("--searched", action="store_true", help="only those whose best recipe was searched before")
    parser.add_argument("--refresh", action="store_true", help="search the best known recipe of every scenario again")
    parser.add_argument("--keep", action="store_true", help="write the policy's figures down as today's")
    parser.add_argument("--plot", action="store_true", help="draw docs/policy_regret.svg")
    parser.add_argument("--csv", type=Path, default=None, help="write every study here")
    options = parser.parse_args()
    started = time.time()
    options.budget = options.budget or (WIDE_BUDGET if options.wide else BUDGET)
    every = [one for one in wide_scenarios() if one.unseen == options.judged] if options.wide else scenarios()
    chosen = every if options.scenarios is None else every[:: max(1, len(every) // options.scenarios)]
    name = "wide" if options.wide else "policy"
    table, today = DATA / f"{name}_best.csv", DATA / f"{name}{'_judged' * options.judged}_today.csv"
    known = {} if options.refresh else read_best(table, chosen)
    chosen = [scenario for scenario in chosen if scenario.name in known] if options.searched else chosen
    kept = read_today(today, chosen)
    results: list[Result] = []
    for result in play_all(chosen, known=known, options=options):
        if not result.best.tokens_per_s_per_gpu:
            print(f"{result.scenario.name}: nothing fits, left out", file=sys.stderr)
            continue
        results.append(result)
        if not options.frozen:
            write_best(table, [result.scenario], {result.scenario.name: result.best})
        if options.keep:
            write_today(today, chosen, [one for each in results for one in each.studies if one.contender == "policy"])
        if not options.judged:
            print(_line(result, options.budget), file=sys.stderr, flush=True)
    best = {result.scenario.name: result.best for result in results}
    studies = [study for result in results for study in result.studies]
    _print(Console(width=200), results, kept, options.budget)
    rates = {name: found.tokens_per_s_per_gpu for name, found in best.items()}
    policies = [study for study in studies if study.contender == "policy"]
    for line in differences(policies, kept, rates, options.budget):
        print(line)
    if options.wide and studies:
        print(_beyond([*studies, *kept], rates))
    if options.csv:
        write_studies(options.csv, studies, rates, options.budget)
    if options.plot:
        draw(DOCS / "policy_regret.svg", [*studies, *kept], rates, options.budget)
    print(f"{len(chosen)} scenarios, simulation {SIMULATION}, {time.time() - started:.0f} s")


def _line(result: Result, budget: int) -> str:
    """Returns each contender's tuned/best at the end of its budget, and its OOMs."""
    best = result.best.tokens_per_s_per_gpu
    ends = [f"{study.contender} {study.tuned_after(budget) / best:.3f} ({study.ooms} OOM)" for study in result.studies]
    return f"{result.scenario.name}, {result.scenario.start}: best {best:,.0f}; {', '.join(ends)}"


def _beyond(studies: Sequence[Study], best: Mapping[str, float]) -> str:
    """Returns a line with the best known throughput over the best that any contender exported."""
    exported: dict[str, float] = {}
    for study in studies:
        if study.scenario in best:
            most = max([study.start, *(burst.tuned for burst in study.paid)])
            exported[study.scenario] = max(exported.get(study.scenario, 0.0), most)
    shares = [best[name] / most - 1 for name, most in exported.items() if most]
    return (
        f"the search found beyond the contenders: median {np.median(shares):.2%}, 90th percentile "
        f"{np.quantile(shares, 0.9):.2%}, most {max(shares):.2%}; in {sum(share > BETTER for share in shares)} of "
        f"{len(shares)} scenarios"
    )


def _print(console: Console, results: Sequence[Result], kept: Sequence[Study], budget: int) -> None:
    """Prints all scenarios, then the unseen ones alone; the kept figures of the policy, where there are any, come
    first."""
    for title, part in (
        ("all scenarios", list(results)),
        ("unseen: no constant was chosen on these", [result for result in results if result.scenario.unseen]),
    ):
        names = {result.scenario.name: result.best.tokens_per_s_per_gpu for result in part}
        before = [replace(study, contender="policy kept") for study in kept if study.scenario in names]
        studies = [study for result in part for study in result.studies]
        if studies:
            console.print(table_of(rows_of([*before, *studies], names, budget), f"{title} ({len(part)})"))
            console.print()


if __name__ == "__main__":
    main()
