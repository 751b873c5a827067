"""Measures how often waiting is traced to its cause, on simulated MoE steps with a known late rank and cause.

    python -m benchmarks.late_ranks [--cases N] [--seed FIRST] [--wrong]

Right: the cause and the late ranks are named, and if the cause is the host, the wall is host on those ranks.
Abstained: no cause is named, or only that the traces of other ranks are needed. All else is wrong.
"""

from __future__ import annotations

import argparse
from collections import Counter

from tests.analyzers.moe_steps.late import CAUSES, find_cause

FIRST_SEED = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=450)
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--only", choices=sorted(CAUSES))
    parser.add_argument("--wrong", action="store_true", help="print every case that is not right")
    asked = parser.parse_args()
    names = [asked.only] if asked.only else list(CAUSES)
    found = [find_cause(names[i % len(names)], asked.seed + i // len(names)) for i in range(asked.cases)]
    if asked.wrong:
        print(*(one for one in found if not one.right), sep="\n")
    print(f"{'what makes ranks late':22} cases  right  wrong  abstained   named")
    for name in [*names, "all"]:
        those = [one for one in found if name in (one.name, "all")]
        right, abstained = sum(one.right for one in those), sum(one.abstained for one in those)
        named = Counter(one.cause or "nothing" for one in those)
        print(
            f"{name:22} {len(those):5} {right:6} {len(those) - right - abstained:6} {abstained:10}   "
            f"{dict(named.most_common())}"
        )


if __name__ == "__main__":
    main()
