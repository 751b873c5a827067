"""Measures how often the verdict on simulated MoE steps is right, and how far the given bounds are from the true gains.

    python -m benchmarks.labelled_steps [--cases N] [--seed FIRST] [--wrong]

Every case is drawn with a seed of its own; the tests' seeds start at 0, these at a million, so that thresholds chosen
on the tests' cases are judged on others.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from analyzers.diagnosis import Wall
from tests.analyzers.moe_steps.judge import Judged, judge
from tests.analyzers.moe_steps.scenarios import SCENARIOS, draw

FIRST_SEED = 1_000_000
MIN_NAMED_SHARE = 0.01  # fraction of the step: smaller bounds are not compared
TOO_LOW = 0.03  # fraction of the step: a bound this far below the true gain is wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--only", choices=sorted(SCENARIOS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--wrong", action="store_true", help="print every case that is not right")
    asked = parser.parse_args()
    scenarios = [asked.only] if asked.only else list(SCENARIOS)
    seeds = [(scenarios[i % len(scenarios)], asked.seed + i // len(scenarios)) for i in range(asked.cases)]
    started = time.process_time()
    if asked.processes > 1:
        with ProcessPoolExecutor(asked.processes) as pool:
            judged = list(pool.map(_judge, seeds, chunksize=8))
    else:
        judged = list(map(_judge, seeds))
    if asked.wrong:
        print(*(one for one in judged if not one.right), sep="\n")
    print(_by_scenario(judged, scenarios))
    print(_bounds(judged))
    print(f"{time.process_time() - started:.1f} s of this process's CPU")


def _judge(seed: tuple[str, int]) -> Judged:
    return judge(draw(*seed))


def _by_scenario(judged: Sequence[Judged], scenarios: Sequence[str]) -> str:
    lines = [f"{'scenario':20} cases  right  sure and wrong  abstained needlessly  verdicts"]
    for name in [*scenarios, "all"]:
        those = [one for one in judged if name in (one.scenario, "all")]
        if not those:
            continue
        needless = [one for one in those if one.verdict is Wall.UNDETERMINED and not one.right]
        verdicts = Counter(str(one.verdict) for one in those)
        lines.append(
            f"{name:20} {len(those):5}  {sum(o.right for o in those) / len(those):5.1%} "
            f"{sum(o.confident_and_wrong for o in those):14} {len(needless):20}   {dict(verdicts.most_common())}"
        )
    return "\n".join(lines)


def _bounds(judged: Sequence[Judged]) -> str:
    lines = [f"{'stated - real':20} cases  median    p90  lowest  too low by {TOO_LOW:.0%} (share of the step)"]
    for wall in Wall:
        error = [
            (one.stated.get(wall, 0.0) - real, one)
            for one in judged
            if max(real := one.real.get(wall, 0.0), one.stated.get(wall, 0.0)) > MIN_NAMED_SHARE
        ]
        if error:
            values = np.array([e for e, _ in error])
            least = min(error, key=lambda pair: pair[0])[1]
            lines.append(
                f"{wall:20} {len(values):5}  {np.median(values):+.3f} {np.quantile(np.abs(values), 0.9):.3f}  "
                f"{values.min():+.3f} {int((values < -TOO_LOW).sum()):5}  ({least.scenario} {least.seed})"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
