"""Writes notes on a recorded launch script: which command was chosen, which variables were taken as empty and which
files as present, each with its line and the option that changes it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.importing.found import ImportOptions, short
from trainer.recording.programs import TRAINS
from trainer.recording.record import JobCommand, Recording

ARGUMENTS = "@"


def notes_of(found: Recording, at: int, command: JobCommand, options: ImportOptions) -> Iterator[str]:
    """Yields the notes on training command number `at` of a recording."""
    first = found.first
    yield from _others(first["trains"], at, first["reported"])
    yield from _empty(first["reported"], first["stderr"], options)
    yield from _decided(found, at)
    yield from _taken(found, command, options)


def training_score(words: Sequence[str]) -> tuple[bool, int]:
    """Returns a sort key of how much a command looks like a training job: whether it names a trainer, then its number
    of flags."""
    named = any(TRAINS.match(word) for word in words[:4])
    return named, sum(word.startswith("--") or "=" in word for word in words)


def line_of(train: Mapping[str, Any], reported: Sequence[Sequence[str]]) -> str:
    """Returns the number of the script's line that starts the command; `?` if it was not recorded."""
    pids = {str(pid) for pid in train["pids"]}
    return next(
        (line for kind, pid, line, _ in reversed(reported[: train["reported"]]) if kind == "at" and pid in pids), "?"
    )


def _others(trains: Sequence[Mapping[str, Any]], at: int, reported: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields a note for each line that starts another training command."""
    best, lines = trains[at], dict[str, str]()
    for each in trains:
        (is_named, flags), (_, most_flags) = training_score(each["words"]), training_score(best["words"])
        if each["words"] != best["words"] and (is_named or flags * 2 > most_flags):
            program = next((word for word in each["words"] if word.endswith(".py")), each["words"][0])
            lines.setdefault(line_of(each, reported), program)
    for line, program in lines.items():
        yield (f"line {line}: {program} is started too: line {line_of(best, reported)} is what was imported, "
               "as it has the most flags")  # fmt: skip


def _empty(reported: Sequence[Sequence[str]], errors: str, options: ImportOptions) -> Iterator[str]:
    """Yields notes on variables that bash took as empty, and on files that it could not read."""
    lines = {text: line for kind, _, line, text in reported if kind == "empty"}
    if ARGUMENTS in lines and ARGUMENTS not in options.given:
        yield f"line {lines.pop(ARGUMENTS)}: the script's arguments ($@) are not known: taken as empty (--set '@=…')"
    if lines:
        names = ", ".join(f"{name} (line {line})" for name, line in lines.items())
        yield f"not set, taken as empty as bash does: {names}: --set NAME=VALUE"
    for line, path in re.findall(r": line (\d+): (.+): No such file or directory$", errors, re.MULTILINE):
        yield f"line {line}: {path} is not here"
    for path, line in {text: line for kind, _, line, text in reported if kind == "absent"}.items():
        yield f"line {line}: {path} is not here: what it sets is not known"


def _decided(found: Recording, at: int) -> Iterator[str]:
    """Yields a note for each tested file whose presence changes the arguments."""
    words = found.first["trains"][at]["words"]
    for path, run in found.otherwise.items():
        trains = run["trains"]
        if at >= len(trains) or trains[at]["words"] != words:
            there = os.path.exists(path)
            what = _difference(words, trains[at]["words"]) if at < len(trains) else "nothing is started"
            yield (f"line {_test_line(found, path)}: {path} is {'there' if there else 'not there'}; otherwise {what} "
                   f"(--{'absent' if there else 'exists'} {path})")  # fmt: skip


def _taken(found: Recording, command: JobCommand, options: ImportOptions) -> Iterator[str]:
    for path in command.present:
        if path not in options.exists:
            yield f"line {_test_line(found, path)}: {path} is not here: assumed to exist (else --absent {path})"
    if command.cwd != (options.cwd or str(Path(options.file).resolve().parent)):
        yield f"started in {command.cwd} (--cwd FOLDER for another)"


def _test_line(found: Recording, path: str) -> str:
    return str(found.first["tests"].get(path.rstrip("/"), "?")).removesuffix("/d")


def _difference(words: Sequence[str], other: Sequence[str]) -> str:
    more, less = [w for w in other if w not in words], [w for w in words if w not in other]
    parts = [f"{verb} {short(shlex.join(found))}" for verb, found in (("with", more), ("without", less)) if found]
    return " and ".join(parts) or "in another order"
