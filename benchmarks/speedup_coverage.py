"""Measures how often the 95 % interval of a speed-up holds the true one, on simulated studies with known noise.

    python -m benchmarks.speedup_coverage

A study is a reference, a best recipe, and other trials of which some are repeated. Each side has 1 to 4 bursts, the
first of each in the loop's order and the others alternating at the end. Bursts vary by a known standard deviation,
independently (`gaussian`) or as a first-order autoregression that forgets within four bursts (`drifting`).
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from autotune.tuning.speedup import speedup
from policies.trial import Phase, Proposal, Status, Trial
from trainer.burst import Outcome
from trainer.recipe import Recipe, load_recipe

STUDIES = 250  # studies per case
STEPS, JITTER = 8, 0.01  # measured steps per burst, and their relative standard deviation
# relative standard deviations between bursts: pinned nodes, shared nodes, busy CPU ranks
DEVIATIONS = (0.003, 0.02, 0.07)
BURSTS = (1, 2, 3, 4)  # bursts per side
MACHINES = ("gaussian", "drifting")
MEMORY = math.exp(-1 / 4)  # correlation of a drifting machine's level from burst to burst


@dataclass(kw_only=True)
class Machine:
    """Simulated machine that gives outcomes of bursts; `level` is the log ratio of its current to its true speed."""

    kind: str
    deviation: float
    rng: random.Random
    level: float = field(init=False)
    bursts: int = 0

    def __post_init__(self) -> None:
        self.level = self.rng.gauss(0, self.deviation)

    def burst(self, speed: float) -> tuple[int, Outcome]:
        keep = MEMORY if self.kind == "drifting" else 0.0
        self.level = keep * self.level + math.sqrt(1 - keep**2) * self.rng.gauss(0, self.deviation)
        self.bursts += 1
        middle = 100_000 / speed * math.exp(self.level)
        steps = [middle * math.exp(self.rng.gauss(0, JITTER)) for _ in range(STEPS)]
        return self.bursts, Outcome(step_us=steps, tokens_per_step=2048, ranks=2)


@dataclass(frozen=True, kw_only=True)
class Case:
    machine: str
    deviation: float
    bursts: int

    def covered(self, seed: int, recipe: Recipe) -> bool:
        """Draws a study; returns True if the interval contains the true speed-up."""
        rng = random.Random(f"{self} {seed}")
        truth = math.exp(rng.uniform(0.0, 1.0))
        machine = Machine(kind=self.machine, deviation=self.deviation, rng=rng)
        reference, best = [machine.burst(1.0)], list[tuple[int, Outcome]]()
        others = []
        count = rng.randint(3, 8)
        found_at = rng.randrange(count)
        for at in range(count):
            if at == found_at:
                best.append(machine.burst(truth))
                continue
            speed = math.exp(rng.uniform(-0.2, 1.0))
            others.append([machine.burst(speed) for _ in range(rng.choice((1, 1, 2, 3)))])
        for _ in range(self.bursts - 1):
            reference.append(machine.burst(1.0))
            best.append(machine.burst(truth))
        trials = [_trial(number, bursts, recipe) for number, bursts in enumerate([reference, best, *others])]
        found = speedup(trials[1], over=trials[0], trials=trials)
        return found is not None and found.low <= truth <= found.high


def _trial(number: int, bursts: list[tuple[int, Outcome]], recipe: Recipe) -> Trial:
    proposal = Proposal(recipe=recipe, parent=None, phase=Phase.PROFILE, fix="drawn", because="drawn")
    return Trial(
        number=number,
        proposal=proposal,
        changes={},
        bursts=tuple(burst for burst, _ in bursts),
        outcomes=tuple(outcome for _, outcome in bursts),
        status=Status.OK,
    )


def coverage(studies: int) -> Iterator[tuple[Case, float]]:
    """Yields each case, and the share of its studies whose interval contains the truth."""
    recipe = load_recipe("cpu-moe")
    for machine, deviation, bursts in itertools.product(MACHINES, DEVIATIONS, BURSTS):
        case = Case(machine=machine, deviation=deviation, bursts=bursts)
        yield case, sum(case.covered(seed, recipe) for seed in range(studies)) / studies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=STUDIES, help="drawn studies of every case")
    studies = parser.parse_args().studies
    found = list(coverage(studies))
    print("machine   between bursts  bursts a side  covered")
    for case, share in found:
        print(f"{case.machine:9} {100 * case.deviation:13.1f} % {case.bursts:14} {100 * share:6.1f} %")
    overall = sum(share for _, share in found) / len(found)
    print(f"{100 * overall:.1f} % of {studies * len(found)} studies, asked for 95 %")


if __name__ == "__main__":
    main()
