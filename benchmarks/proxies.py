"""Measures what smaller runs save: GPU-hours until a choice of 97 % of the best known is proposed.

    python -m benchmarks.proxies [--scenarios N] [--skip N] [--nodes 8] [--budget K] [--kept] [--no-probe]
        [--processes P] [--keep FOLDER]
    python -m benchmarks.proxies --read FOLDER [--kept]

Every scenario of benchmarks.policy with 256 GPUs or more is tuned twice by the product's own loop, with traces: once
with smaller runs on at most `--nodes` nodes (`tune.proxy_nodes`) and once with bursts of the full run, both after the
probe of a study (`--no-probe`: without). The probe and all bursts count, the base's included. `hours` are GPU-hours
until the recipe that the study would export truly reaches 97 % of the best known and stays there; `choice` the true
throughput, over the best known, of what a study with smaller runs has found by them; `confirm` the GPU-hours of the
bursts at full size with which it ends, and `confirmed` the true throughput of what it exports then. The figures are
computed from the journals alone: `--keep` writes them to a folder, `--read` computes the figures of that folder
again. `--kept` takes the bursts of the full run from the figures that `benchmarks.policy --keep` wrote (the
scenario's first seed), with one burst of the base added, instead of running them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from autotune.tuning.events import BurstStarted, Ended, Event
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_events
from benchmarks.places import DATA
from benchmarks.policy.best import Effort, read_best, search_best
from benchmarks.policy.ground import Ground
from benchmarks.policy.scenarios import Scenario, scenarios
from benchmarks.policy.today import read_today
from benchmarks.policy.tuned import BASE_BURSTS, run_policy
from policies.reason import ReasonKind
from trainer.burst import Burst
from trainer.engines.simulated import SimulatedEngine

GPUS = 256  # GPUs of the smallest target
SHARE = 0.97  # share of the best known throughput that counts as reached
SMALLER, FULL = "smaller", "full"


@dataclass(frozen=True, kw_only=True)
class Played:
    """One study: GPU-hours and true throughput, over the best known, of the exported recipe after every burst of its
    search and at its end; `confirm` are the GPU-hours of the full-size bursts that ended it."""

    name: str
    curve: tuple[tuple[float, float], ...]
    confirm: float
    confirmed: float
    ooms: int

    @property
    def hours(self) -> float:
        """Returns the GPU-hours until the exported recipe reaches SHARE and keeps it; inf: never."""
        reached = math.inf
        for hours, share in self.curve:
            reached = math.inf if share < SHARE else min(reached, hours)
        return reached


def played_of(ground: Ground, best: float, events: Sequence[Event]) -> Played:
    """Returns the figures of one journal."""
    curve, confirm, history = list[tuple[float, float]](), 0.0, History()
    for before, after, history in _bursts(events):
        at_full_size = _confirms(history)
        confirm += (after - before) if at_full_size else 0.0
        if not at_full_size and not confirm:
            share = ground.truth(history.best.recipe) / best if history.best else 0.0
            curve.append((after, share))
    oom = sum(trial.status == "oom" for trial in history.attempted.values())
    end = ground.truth(history.best.recipe) / best if history.best else 0.0
    return Played(name=ground.scenario.name, curve=tuple(curve), confirm=confirm, confirmed=end, ooms=oom)


def _bursts(events: Sequence[Event]) -> Iterator[tuple[float, float, History]]:
    """Yields the study just before the next burst starts, with the GPU-hours before and after its last one."""
    history, before = History(), 0.0
    for event in events:
        if isinstance(event, BurstStarted) and history.finished:
            yield before, history.gpu_hours, history
            before = history.gpu_hours
        history.fold(event)
    yield before, history.gpu_hours, history


def _confirms(history: History) -> bool:
    """Returns whether the last burst ran, at full size, a recipe that smaller runs had measured."""
    if not any(trial.fidelity is not None for trial in history.attempted.values()):
        return False
    trial = history.attempted[history.finished[-1].trial]
    reason = trial.proposal.reason
    return trial.fidelity is None and reason is not None and reason.kind is ReasonKind.FULL_SIZE


def play(
    scenario: Scenario, *, nodes: int, budget: int, keep: Path, kept: bool, play: bool, probe: bool
) -> tuple[Played, Played]:
    """Returns the figures of a scenario with smaller runs and without; tunes it first if `play`."""
    ground, best = _ground(scenario)
    found = []
    for kind, most in ((SMALLER, nodes), (FULL, None)):
        folder = keep / f"{scenario.name.replace(' ', '-')}-{kind}"
        if kind == FULL and kept:
            found.append(_kept(ground, best))
            continue
        if play:
            ended, events = run_policy(ground, folder, budget - BASE_BURSTS, proxy_nodes=most, probe=probe)
            if not isinstance(events[-1], Ended):
                print(f"{scenario.name}: {ended}")
        else:
            events = read_events(folder / JOURNAL)[0]
        found.append(played_of(ground, best, events))
    return found[0], found[1]


def _kept(ground: Ground, best: float) -> Played:
    """Returns the figures of the kept study of the scenario's first seed; runs its base burst for the cost."""
    scenario = ground.scenario
    studies = [each for each in read_today(DATA / "policy_today.csv", [scenario]) if each.seed == scenario.seed]
    if not studies:
        raise SystemExit(f"{scenario.name}: no figures are kept; run without --kept")
    with TemporaryDirectory(prefix="proxies-") as folder:
        base = Burst(number=1, recipe=scenario.recipe, folder=Path(folder) / "base", seed=scenario.seed)
        cost_s = SimulatedEngine(Path(folder)).run(base).cost_s or 0.0
    hours = cost_s * scenario.recipe.world_size / 3600
    curve = [(hours, studies[0].start / best)]
    for paid in studies[0].paid:
        hours += paid.gpu_hours
        curve.append((hours, paid.tuned / best))
    ooms = sum(paid.oom for paid in studies[0].paid) + (studies[0].start == 0)
    return Played(name=scenario.name, curve=tuple(curve), confirm=0.0, confirmed=curve[-1][1], ooms=ooms)


def _ground(scenario: Scenario) -> tuple[Ground, float]:
    ground = Ground(scenario)
    known = read_best(DATA / "policy_best.csv", [scenario])
    if scenario.name in known:
        return ground, known[scenario.name].tokens_per_s_per_gpu
    search_best(ground, Effort())
    return ground, ground.best[0]


def _row(smaller: Played, full: Played) -> str:
    share = smaller.hours / full.hours if math.isfinite(full.hours) else math.nan
    return (
        f"{smaller.name:<48} {smaller.hours:>8.1f} {full.hours:>8.1f} {share:>7.2f} {smaller.confirm:>8.1f} "
        f"{smaller.curve[-1][1]:>7.3f} {smaller.confirmed:>9.3f} {full.confirmed:>7.3f} "
        f"{smaller.ooms} {full.ooms}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=None, help="the first so many; default all")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first so many")
    parser.add_argument("--nodes", type=int, default=8, help="most nodes of a smaller run")
    parser.add_argument("--budget", type=int, default=14, help="bursts of a study")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=None, help="keep the studies here")
    parser.add_argument("--kept", action="store_true", help="take the full bursts from the figures kept")
    parser.add_argument("--no-probe", action="store_true", help="begin with the first burst")
    parser.add_argument("--read", type=Path, default=None, help="compute the figures of kept studies")
    options = parser.parse_args()
    chosen = [scenario for scenario in scenarios() if scenario.recipe.world_size >= GPUS]
    chosen = chosen[options.skip :][: options.scenarios]
    print(
        f"{'GPU-hours to 97 %':<48} {'smaller':>8} {'full':>8} {'ratio':>7} {'confirm':>8} {'choice':>7} confirmed",
        end="",
    )
    print(f" {'full':>7} OOMs")
    with TemporaryDirectory(prefix="proxies-") as scratch:
        keep = options.keep or Path(scratch)
        asked = {"nodes": options.nodes, "budget": options.budget, "kept": options.kept, "probe": not options.no_probe}
        one = partial(play, keep=options.read or keep, play=options.read is None, **asked)
        results = []
        with get_context("fork").Pool(options.processes) as pool:
            for smaller, full in pool.imap(one, chosen):
                results.append((smaller, full))
                print(_row(smaller, full), flush=True)
    ratios = [smaller.hours / full.hours for smaller, full in results if math.isfinite(full.hours)]
    if ratios:
        print(f"median ratio {median(ratios):.2f}, worst {max(ratios):.2f}, of {len(ratios)} targets")
    never = [
        kind for pair in results for kind, each in zip((SMALLER, FULL), pair, strict=True) if each.hours == math.inf
    ]
    print(f"never at {SHARE:.0%}: {never.count(SMALLER)} with smaller runs, {never.count(FULL)} without")


if __name__ == "__main__":
    main()
