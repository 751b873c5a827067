"""Accounts for an import as JSON, in the terminal and in the file: what became the recipe, what is passed on or kept in
the command, what was changed or left out."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Any, TypedDict

from rich.console import Console

from autotune.importing.recipe import Imported
from autotune.looks.quantities import counted
from autotune.looks.recipes import layout_words, model_words
from autotune.looks.wrapping import listed, say
from trainer.recipe import Recipe
from trainer.recipe.dump import yaml_text
from trainer.recipe.knobs import KNOBS
from trainer.values import knob_value

MAX_LISTED = 40
LEAD = 13


class RecipeParts(TypedDict):
    """Parts of the file that became the recipe."""

    model: str | dict[str, Any]  # a preset, or Megatron-Core's own fields
    knobs: dict[str, Any]  # knobs that differ from their default
    environment: list[str]  # variables that became knobs
    cluster: dict[str, Any]


class PassedOn(TypedDict):
    """Parts of the file under `trainer:`, which the trainer gets unchanged."""

    arguments: list[str]
    own_arguments: list[str]  # arguments that only a fork of the trainer has
    environment: dict[str, str]
    setup: list[str]  # lines that prepare the shell
    expand: list[str]  # words that bash expands when the job starts


class KeptWords(TypedDict):
    words: str
    why: str  # why the words stayed in the command


# an argument whose value the recipe changes; in functional syntax because `is` is a Python keyword
ChangedValue = TypedDict("ChangedValue", {"name": str, "was": Any, "is": Any})


class LeftOut(TypedDict):
    launchers: list[str]
    secret: list[str]  # names of variables that hold secrets


class ImportDocument(TypedDict):
    """Document of `import --json`: the recipe, and what became of each part of the file."""

    schema: int
    yaml: str  # the recipe
    file: str | None  # the file that -o wrote; null: stdout
    what: str  # the kind of the file
    took: RecipeParts
    passed_on: PassedOn
    kept: list[KeptWords]
    changed: list[ChangedValue]
    left_out: LeftOut
    notes: list[str]


def document(imported: Imported, *, text: str, file: str | None) -> ImportDocument:
    found, environment = imported.found, imported.environment
    return {
        "schema": 1,
        "yaml": text,
        "file": file,
        "what": found.what,
        "took": {
            "model": imported.recipe.model
            if isinstance(imported.recipe.model, str)
            else imported.recipe.architecture.model_dump(mode="json", exclude_defaults=True),
            "knobs": {name: imported.recipe.knob(name) for name in _moved(imported.recipe)},
            "environment": sorted(environment.knobs),
            "cluster": imported.recipe.cluster.model_dump(mode="json", exclude_none=True),
        },
        "passed_on": {
            "arguments": list(found.reading.passed),
            "own_arguments": list(found.reading.own),
            "environment": dict(environment.trainer),
            "setup": list(found.started.setup),
            "expand": list(_expanded(imported)),
        },
        "kept": [{"words": each.words, "why": each.why} for each in found.reading.kept],
        "changed": [{"name": name, "was": was, "is": now} for name, (was, now) in imported.changed.items()],
        "left_out": {
            "launchers": [" ".join(each.words) for each in found.started.launchers],
            "secret": list(environment.secret),
        },
        "notes": list(found.notes),
    }


def show(console: Console, imported: Imported, *, name: str) -> None:
    """Prints a short account."""
    say(console, f"{name}: {imported.found.what}")
    for title, lines in _parts(imported):
        for index, line in enumerate(lines):
            say(console, line, lead=("" if index else title).ljust(LEAD))


def header(imported: Imported, *, name: str) -> str:
    """Returns the comment above the recipe: the imported file, its launchers, what was left out, kept in the command or
    changed, and the notes."""
    found, environment = imported.found, imported.environment
    lines = [f"Imported from {name}, {found.what}, by moe-autotune."]
    if found.started.launchers or found.started.headers:
        lines.append("It was launched with these arguments; burst.launcher starts the ranks of a burst:")
        lines += [f"  #SBATCH {' '.join(found.started.headers)}"] if found.started.headers else []
        lines += [f"  {shlex.join(each.words)}" for each in found.started.launchers]
    if environment.launcher or environment.secret:
        lines.append(f"Variables left out: {' '.join((*environment.launcher, *environment.secret))}")
    lines += [f"Kept in the command: {each.words} ({each.why})" for each in found.reading.kept]
    lines += [f"CHANGED: {line}" for line in _changes(imported)]
    lines += found.notes
    return "".join(f"# {_one_line(line)}\n" for line in lines)


def _one_line(text: str) -> str:
    """Returns the text as one line: a second one would not be part of the comment."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).split()
    return "  " * text.startswith("  ") + " ".join(words)


def yaml_of(recipe: Recipe) -> str:
    """Returns the recipe as YAML with every field of its training section, since users look for it first."""
    data = recipe.model_dump(mode="json", exclude_defaults=True)
    whole = {"training": recipe.training.model_dump(mode="json")}
    cluster = {"cluster": {"gpu": recipe.cluster.gpu_name, **data.get("cluster", {})}}
    order = [name for name in type(recipe).model_fields if name in {**data, **whole}]
    return yaml_text({name: {**data, **whole, **cluster}[name] for name in order})


def _parts(imported: Imported) -> Iterator[tuple[str, list[str]]]:
    found, environment = imported.found, imported.environment
    yield "imported", list(_took(imported))
    yield "passed on", list(_passed(imported))
    yield "kept", [f"{each.words}: {each.why}" for each in found.reading.kept]
    yield "CHANGED", _changes(imported)
    secrets = (
        [f"{' '.join(environment.secret)}: a secret, never written to a file: export it yourself"]
        if environment.secret
        else []
    )
    yield "left out", [*_launchers(imported), *secrets]
    yield "note", list(found.notes)


def _took(imported: Imported) -> Iterator[str]:
    recipe, environment = imported.recipe, imported.environment
    yield f"model {model_words(recipe)}"
    cluster = recipe.cluster
    yield f"{layout_words(recipe)}, on {counted(cluster.nodes, 'node')} of {cluster.gpus_per_node} {cluster.gpu_name}"
    training = recipe.training
    yield f"batch {training.global_batch_size} of {training.seq_length} tokens, {training.precision}"
    if knobs := [name for name in _moved(recipe) if KNOBS[name].section == "knobs" and name not in environment.knobs]:
        yield listed([_short(name, recipe.knob(name)) for name in knobs])
    if environment.knobs:
        yield listed([_short(name, value) for name, value in environment.knobs.items()])


def _passed(imported: Imported) -> Iterator[str]:
    found, environment = imported.found, imported.environment
    if found.reading.passed:
        yield f"{counted(len(found.reading.passed), 'argument')}: {listed(_cut(found.reading.passed))}"
    if found.reading.own:
        flags = [words.split()[0].partition("=")[0] for words in found.reading.own]
        yield f"{counted(len(flags), 'argument')} that the trainer itself does not have: {listed(_cut(flags))}"
    if environment.trainer:
        yield f"{counted(len(environment.trainer), 'variable')}: {listed(_cut(environment.trainer))}"
    if expanded := _expanded(imported):
        yield f"{counted(len(expanded), 'word')} that bash expands when the job starts: {listed(_cut(expanded))}"
    if setup := found.started.setup:
        said = "each rank of a burst runs it before the command, exports before the launch"
        yield f"{counted(len(setup), 'line')} of shell setup: {'; '.join(_cut(setup))} ({said})"


def _expanded(imported: Imported) -> tuple[str, ...]:
    trainer = imported.recipe.trainer
    return () if trainer is None else trainer.expand


def _launchers(imported: Imported) -> Iterator[str]:
    names = [each.name for each in imported.found.started.launchers]
    names += ["the #SBATCH lines"] if imported.found.started.headers else []
    if names:
        yield f"{', '.join(names)}: kept as a comment, burst.launcher starts the ranks"
    if imported.environment.launcher:
        yield f"{' '.join(imported.environment.launcher)}: the launcher's"


def _moved(recipe: Recipe) -> list[str]:
    """Returns the knobs that differ from the default in the table of knobs."""
    return [name for name, knob in KNOBS.items() if recipe.knob(name) != knob.default]


def _short(name: str, value: Any) -> str:
    return name if value is True else f"{name}={knob_value(value)}"


def _changes(imported: Imported) -> list[str]:
    return [
        f"{name} is {knob_value(now)} by the recipe's flags, {knob_value(was)} in the file"
        for name, (was, now) in imported.changed.items()
    ]


def _cut(names: Iterable[str]) -> list[str]:
    found = list(names)
    more = len(found) - MAX_LISTED
    return [*found[:MAX_LISTED], f"and {more} more"] if more > 0 else found
