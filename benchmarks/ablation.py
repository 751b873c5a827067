"""Measures how many changes the ablation removes from tuned recipes, and what that costs, on simulated clusters.

    python -m benchmarks.ablation [--budget 16] [--ablate 4] [--only N,N]

Each study is the product's own loop on a scenario of benchmarks.policy, `--ablate` of its bursts kept for the end.
Prints the number of knobs and named changes by which the tuned recipe differs from the base before and after the
ablation, the true throughput lost by the removal (by the simulation without noise, which the study does not see;
negative: gained), and the bursts of the ablation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from autotune.tuning.events import AblationStarted, BurstFinished, Event, Judged
from autotune.tuning.history import History
from benchmarks.policy.ground import Ground
from benchmarks.policy.scenarios import Scenario, scenarios
from benchmarks.policy.tuned import run_policy
from policies.trial import Verdict
from policies.tuner.decomposition import members
from trainer.recipe import Recipe

SCENARIOS = (0, 10, 13, 17, 19, 20, 22, 25, 32, 36, 37, 47)  # rows of the table whose studies take a minute


@dataclass(frozen=True, kw_only=True)
class Ablated:
    """Result of one study.

    `knobs` and `changes` are counts over the base, (before, after) the ablation; `lost` is a fraction of true
    throughput.
    """

    name: str
    knobs: tuple[int, int]
    changes: tuple[int, int]
    lost: float
    bursts: int


def ablated(scenario: Scenario, budget: int, bursts: int) -> Ablated | None:
    """Returns the result of a study; None if it ends without an ablation."""
    ground = Ground(scenario)
    with TemporaryDirectory(prefix="ablation-") as folder:
        _, events = run_policy(ground, Path(folder) / "study", budget, ablate=bursts)
    history = History(events)
    started = next((each for each in events if isinstance(each, AblationStarted)), None)
    if started is None or history.best is None:
        return None
    before, after = history.attempted[started.tuned].recipe, history.best.recipe
    base = scenario.recipe
    return Ablated(
        name=f"{scenario.name}, {scenario.start}",
        knobs=(len(base.diff(before)), len(base.diff(after))),
        changes=(_changes(base, before), _changes(base, after)),
        lost=1 - ground.truth(after) / ground.truth(before),
        bursts=_bursts(events, started),
    )


def _changes(base: Recipe, tuned: Recipe) -> int:
    return len(members(base, tuned))


def _bursts(events: Sequence[Event], started: AblationStarted) -> int:
    """Returns the bursts of the ablation, without those that confirm the smaller recipe."""
    after = events[events.index(started) :]
    accepted = (at for at, each in enumerate(after) if isinstance(each, Judged) and each.verdict is Verdict.ACCEPTED)
    return sum(isinstance(each, BurstFinished) for each in after[: next(accepted, len(after))])


def results(only: tuple[int, ...], budget: int, bursts: int) -> Iterator[Ablated]:
    """Yields the results of the scenarios whose studies end with an ablation."""
    for at in only:
        found = ablated(scenarios()[at], budget, bursts)
        if found is not None:
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=16, help="bursts of a study after the base's")
    parser.add_argument("--ablate", type=int, default=4, help="of them, kept for the ablation")
    parser.add_argument("--only", default="", help="rows of scenarios.csv, with commas; default twelve of them")
    given = parser.parse_args()
    only = tuple(map(int, given.only.split(","))) if given.only else SCENARIOS
    found = []
    for each in results(only, given.budget, given.ablate):
        found.append(each)
        knobs, changes = (f"{before} → {after}" for before, after in (each.knobs, each.changes))
        print(
            f"{each.name:55} knobs {knobs:8} changes {changes:8} lost {100 * each.lost:+.2f} % {each.bursts} bursts",
            flush=True,
        )
    if len(found) > 1:
        before, after = (median(each.knobs[side] for each in found) for side in (0, 1))
        lost = [100 * each.lost for each in found]
        print(
            f"{len(found)} studies: knobs {before:g} → {after:g}, lost {median(lost):.2f} % in the median, "
            f"{max(lost):.2f} % at most; {median(each.bursts for each in found):g} bursts"
        )


if __name__ == "__main__":
    main()
