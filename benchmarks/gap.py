"""Measures whether `gap` finds planted slowdowns from the log and traces of simulated clusters.

    python -m benchmarks.gap [--recipes 60] [--seed N]
    python -m benchmarks.gap --seed 2 --keep FOLDER

A case is a published run with one or two settings changed for the worse, with a router that favours some experts, or
with a link at part of its rate. It is run on a simulated cluster with noise; a log as Megatron-LM writes it, with its
dump of arguments, and the traces of some ranks are left. A planted slowdown costs at least MIN_COST of the step in the
simulation. It leads if it is the first cause listed; of two, if the more expensive one is.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from autotune.gap.comparing import Compared, compared
from autotune.gap.inputs import RunOptions, side_of
from benchmarks.gap_cases import Case, drawn, on_machine, write_log
from policies.surrogate.blas import one_blas_thread
from policies.trial import Z_90
from trainer.burst import Burst
from trainer.engines.simulated import SimulatedEngine
from trainer.engines.simulated.step import Simulation
from trainer.estimate.gap.losses import Loss, losses
from trainer.measured.software import latest

LEADS, FIRST = "the most expensive planted slowdown leads", "all planted slowdowns are first"
SHOWN = 4
EITHER = 0.02  # fraction of the step: of two slowdowns that differ by less, either may lead


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of one case: the causes listed, and the place of each planted slowdown among them (None: not listed)."""

    case: Case
    named: tuple[Loss, ...]
    places: tuple[int | None, ...]
    row: str
    step_s: float  # step of the slowed run in the simulation

    @property
    def planted(self) -> list[tuple[Loss, float]]:
        """Returns the cause of each planted slowdown that is listed, and its true seconds."""
        pairs = zip(self.case.slowdowns, self.places, strict=True)
        return [(self.named[place], slowdown.cost * self.step_s) for slowdown, place in pairs if place is not None]

    @property
    def holds(self) -> list[bool]:
        """Returns whether the 90 % interval of each cause contains its cost in the simulation."""
        return [abs(true_s - loss.time.s) <= Z_90 * loss.time.deviation_s for loss, true_s in self.planted]

    @property
    def leads(self) -> bool:
        """Returns whether the first cause is the most expensive planted slowdown, or one equally expensive."""
        dearest = self.case.slowdowns[0].cost
        pairs = zip(self.case.slowdowns, self.places, strict=True)
        return any(place == 0 and slowdown.cost >= dearest - EITHER for slowdown, place in pairs)

    @property
    def first_are_planted(self) -> bool:
        """Returns whether the first causes are the planted slowdowns, in any order."""
        return sorted(place if place is not None else 99 for place in self.places) == list(range(len(self.places)))


@one_blas_thread()
def judged(seed: int) -> Result:
    case = drawn(seed)
    with tempfile.TemporaryDirectory() as folder:
        found = seen(case, seed, Path(folder))
    assert found.waterfall is not None
    named = tuple(losses(found.waterfall))
    places = []
    for slowdown in case.slowdowns:
        known = (
            at
            for at, loss in enumerate(named)
            if any(slowdown.is_named(loss.kind, loss.name, gap.knobs) for gap in loss.gaps)
        )
        places.append(next(known, None))
    step_s = Simulation(on_machine(case.recipe, case.machine), case.machine).step_us / 1e6
    row = found.nearest.run.row if found.nearest else ""
    return Result(case=case, named=named, places=tuple(places), row=row, step_s=step_s)


def run(case: Case, seed: int, folder: Path) -> None:
    """Runs a case; leaves only its log and its traces in the folder."""
    recipe = on_machine(case.recipe, case.machine)
    inside = folder / "run"
    outcome = SimulatedEngine(inside).run(Burst(number=0, recipe=recipe, folder=inside / "0000", seed=seed))
    shutil.move(inside / "0000" / "trace", folder / "trace")
    write_log(case.recipe, outcome.step_us, folder / "run.log")
    shutil.rmtree(inside)


def seen(case: Case, seed: int, folder: Path) -> Compared:
    """Runs a case, then `gap` on its log and traces."""
    run(case, seed, folder)
    cluster = case.recipe.cluster
    beside = RunOptions(gpu=cluster.gpu_name, gpus_per_node=case.recipe.ranks_per_node, trace=folder / "trace")
    side = side_of(str(folder / "run.log"), beside)
    assert cluster.nodes == (side.recipe.cluster.nodes if side.recipe else 0)
    return compared(side, named=None, other=None, release=latest(), plan=lambda own: None)


def rows(results: Sequence[Result], first_seed: int) -> list[str]:
    """Returns a row per kind of case and one of all; the seeds of `results` count up from `first_seed`."""
    kinds = {"one setting": (0, 1), "two settings": (2,), "router": (3,), "link": (4,)}
    said = []
    for name, of in kinds.items():
        chosen = [result for seed, result in enumerate(results, first_seed) if seed % 5 in of]
        said += [_row(name, chosen)] if chosen else []
    return [*said, _row("all", results)]


def _row(name: str, results: Sequence[Result]) -> str:
    leads, first = (sum(getattr(each, what) for each in results) for what in ("leads", "first_are_planted"))
    shares = (f"{words} {number} ({number / len(results):.0%})" for words, number in ((LEADS, leads), (FIRST, first)))
    holds = [each for result in results for each in result.holds]
    return f"{name:13} {len(results):3} cases  {'  '.join(shares)}  intervals hold {sum(holds)} of {len(holds)}"


def medians(results: Sequence[Result]) -> Iterator[str]:
    """Yields for each cause that was planted: the median of its seconds as listed over its true ones."""
    found: dict[str, list[float]] = {}
    for loss, true_s in (each for result in results for each in result.planted):
        found.setdefault(loss.name, []).append(loss.time.s / true_s)
    for name, ratios in sorted(found.items(), key=lambda each: -len(each[1])):
        yield f"{name:30} {len(ratios):3} cases  {median(ratios):.2f} of its true cost in the median"


def described(result: Result) -> str:
    case = result.case
    slowdowns = "; ".join(f"{each.what} ({each.cost:.0%})" for each in case.slowdowns)
    named = ", ".join(f"{each.name} {each.time.s:.2f} s" for each in result.named[:SHOWN])
    return f"{case.run.row} {case.recipe.cluster.gpu_name} (against {result.row}): planted {slowdowns}; named {named}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="only write the log and traces of the first case into this folder")
    parser.add_argument("--all", action="store_true", help="describe every case, not only the missed ones")
    asked = parser.parse_args()
    if asked.keep:
        asked.keep.mkdir(parents=True)
        run(drawn(asked.seed), asked.seed, asked.keep)
        return
    with get_context("fork").Pool(2) as pool:
        results = pool.map(judged, range(asked.seed, asked.seed + asked.recipes), chunksize=1)
    for result in results:
        if asked.all or not (result.leads and result.first_are_planted):
            print(("leads  " if result.leads else "MISSED ") + described(result))
    print("\n".join([*rows(results, asked.seed), *medians(results)]))


if __name__ == "__main__":
    main()
