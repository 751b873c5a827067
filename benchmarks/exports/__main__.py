"""Counts the exports that the real trainer accepts.

    MEGATRON_LM=../Megatron-LM python -m benchmarks.exports megatron-lm [--for VERSION …] [--facts FOLDER]
    MEGATRON_LM=../Megatron-LM python -m benchmarks.exports unstopped [--for VERSION …]

The second gives the parser an example of every rule which says that no check refuses it. Needs a checkout of
NVIDIA/Megatron-LM and this project's environment; no GPU. Exit code 1 if check and the parser disagree about a recipe,
or a knob did not stay as the recipe has it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.exports.checkout import checkout_or_exit, versions_there
from benchmarks.exports.megatron_lm import VERSIONS, figures
from benchmarks.exports.recipes import asked
from benchmarks.exports.unstopped import unstopped
from benchmarks.places import DATA


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports", description=__doc__)
    parser.add_argument("target", choices=["megatron-lm", "unstopped"])
    parser.add_argument("--for", dest="versions", nargs="+", default=list(VERSIONS), help="versions, or head")
    parser.add_argument("--facts", type=Path, default=DATA, help="the folder with tuned_recipes.json")
    given = parser.parse_args()
    folder = checkout_or_exit()
    versions = versions_there(folder, tuple(given.versions))
    if given.target == "unstopped":
        print(*(line for version in versions for line in unstopped(folder, version)), sep="\n")
        return
    recipes, agreed = asked(given.facts), True
    for version in versions:
        found = figures(folder, version, recipes)
        print(*found.lines(), sep="\n")
        apart = found.of(ours=True, theirs=False) + found.of(ours=False, theirs=True)
        agreed = agreed and not apart and not any(v.unkept for v in found.verdicts)
    raise SystemExit(0 if agreed else 1)


if __name__ == "__main__":
    main()
