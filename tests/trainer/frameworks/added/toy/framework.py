"""A made-up framework whose command spells a recipe as `toy.NAME:VALUE`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer.frameworks.burst import BurstRequest
from trainer.frameworks.framework import Framework, RankCommand
from trainer.frameworks.reading import ImportRequest, Reader, Reading
from trainer.launch_scripts.variables import environment
from trainer.recipe import Recipe
from trainer.recipe.architecture import Architecture
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import check

PREFIX = "toy."


def _words(recipe: Recipe) -> Iterator[str]:
    yield from (f"{PREFIX}{name}:{json.dumps(recipe.knob(name))}" for name in KNOBS if recipe.knob(name) is not None)
    for name, value in recipe.architecture.model_dump(mode="json", exclude_defaults=True).items():
        yield f"{PREFIX}{name}:{json.dumps(value)}"


def _rank_command(recipe: Recipe, version: str | None, bursts: Path | None) -> RankCommand:
    command = recipe.trainer.command if recipe.trainer else ("python", "train_toy.py")
    written = {word.partition(":")[0] for word in _words(recipe)}
    kept = (word for word in command if word.partition(":")[0] not in written)
    return RankCommand(argv=(*kept, *_words(recipe)))


def _burst_argv(request: BurstRequest) -> tuple[str, ...]:
    return (*_rank_command(request.recipe, None, None).argv, f"{PREFIX}stop_after:{request.bounds.last}")


def _script(recipe: Recipe, version: str | None, origin: Sequence[str]) -> str:
    lines = [
        *(f"# {line}" for line in origin),
        *(f"export {name}={value}" for name, value in environment(recipe).items()),
    ]
    return "\n".join([*lines, " ".join(_rank_command(recipe, version, None).argv)])


def _read_command(argv: Sequence[str], request: ImportRequest, stays: frozenset[str]) -> Reading:
    known = KNOBS.keys() | Architecture.model_fields.keys()
    names = {word: word.partition(":")[0].removeprefix(PREFIX) for word in argv}
    said = {name: json.loads(word.partition(":")[2]) for word, name in names.items() if name in known}
    return Reading(
        model={name: value for name, value in said.items() if name in Architecture.model_fields},
        knobs={name: value for name, value in said.items() if name in KNOBS},
        rest=tuple(word for word, name in names.items() if name not in known),
    )


FRAMEWORK = Framework(
    name="toy",
    title="Toy",
    rank_command=_rank_command,
    burst_argv=_burst_argv,
    log_patterns={
        "iteration": r"step (?P<iteration>\d+) took (?P<ms>\d+) ms",
        "loss": r"loss (?P<loss>\S+)",
        "grad_norm": r"norm (?P<grad_norm>\S+)",
        "skipped": r"skipped (?P<skipped>\d+)",
        "nan": r"nan (?P<nan>\d+)",
        "tflops": r"(?P<tflops>\S+) TFLOP/s",
        "memory": r"rank (?P<rank>\d+) took (?P<allocated>\d+) MB",
    },
    acting_knobs=lambda recipe, folder, log: {},
    findings=lambda recipe, version: check(recipe),
    script=_script,
    reader=Reader(
        order=2,
        starts=lambda argv: any(word.startswith(PREFIX) for word in argv),
        read_command=_read_command,
    ),
)
