"""Runs Megatron-LM's own parser in a separate process: one request and one answer per recipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainer.frameworks.megatron_lm.model import model_spellings
from trainer.frameworks.megatron_lm.required import mock_data_words, required_environment, required_words
from trainer.frameworks.megatron_lm.spelling import knob_spellings
from trainer.launch_scripts.variables import environment
from trainer.recipe import Recipe

PARSER = Path(__file__).with_name("real_parser.py")
# flags that every job needs and no recipe decides
JOB = ("--train-iters", "50", "--lr", "3e-4", "--eval-iters", "0", "--log-interval", "1", "--log-throughput")
CPU_CAPABILITY = 9.0  # compute capability given to the parser for recipes without a GPU


def capability(recipe: Recipe) -> tuple[int, int]:
    """Returns the compute capability (major, minor) that torch reports on the recipe's GPU."""
    found = recipe.hardware.compute_capability or CPU_CAPABILITY
    return int(found), round(10 * (found % 1))


def argv_of(recipe: Recipe, version: str) -> list[str]:
    """Returns the exported command line; flags that the version lacks are included, for the parser to refuse."""
    spellings = (*model_spellings(recipe, version), *knob_spellings(recipe, version))
    groups = [spelling.words or spelling.wanted for spelling in spellings]
    groups += [required.words for required in required_words(recipe, version)]
    return [word for group in (*groups, mock_data_words(recipe, version), JOB) for word in group]


def request_of(number: int, recipe: Recipe, version: str) -> dict[str, Any]:
    required = {name: found.words[0] for name, found in required_environment(recipe).items()}
    return {
        "id": number,
        "argv": argv_of(recipe, version),
        "env": environment(recipe) | required,
        "world_size": recipe.world_size,
        "capability": capability(recipe),
    }


def answers(tree: Path, requests: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the parser's answers in the order of the requests.

    Raises RuntimeError with the process's stderr if it ended before the last one.
    """
    lines = [json.dumps(request) for request in requests]
    done = subprocess.run(
        [sys.executable, str(PARSER), str(tree)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")},
        check=False,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    if len(said) < len(lines):
        raise RuntimeError(f"{len(said)} of {len(lines)} answers of {tree}: {done.stderr[-2000:]}")
    return said


def options(tree: Path) -> dict[str, dict[str, Any]]:
    """Returns every option of the parser by flag: dest, action, default, choices."""
    (answer,) = answers(tree, [{"id": 0, "flags": True}])
    return {flag: row for row in answer["flags"] for flag in row["flags"]}
