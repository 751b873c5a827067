"""Finds the file or packaged example that the user named, and reads its YAML as plain data with line numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from trainer.errors import BadInputError, Problem, refused
from trainer.recipe.aliases import values_in
from trainer.recipe.files import text_of

KeyPath = tuple[str | int, ...]
MAX_NEAR = 3
MAX_VALUES = 20_000  # most values of a document with its aliases expanded; a recipe with every knob has 300


@dataclass(frozen=True, kw_only=True)
class Source:
    """A recipe or a machine file as read, not yet checked. `name` is its name in problems; `lines` has the line of
    every key path."""

    name: str
    data: Any
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """Returns a place such as "recipe.yaml:12 training.seq_length"; an absent key has its section's line."""
        written = path
        while written and written not in self.lines:
            written = written[:-1]
        line = f":{self.lines[written]}" if written in self.lines else ""
        return f"{self.name}{line} {'.'.join(map(str, path))}".rstrip()


def packaged_examples() -> tuple[str, ...]:
    """Returns the names of the recipes that come with the package."""
    found = (files("trainer.recipe") / "examples").iterdir()
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in found if entry.name.endswith(".yaml")))


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """Returns the candidate that `word` was probably meant to be: the first that starts with it and a hyphen,
    else the most similar; None if none is similar."""
    lower = {candidate.lower(): candidate for candidate in candidates}
    longer = [name for name in lower if name.startswith(f"{word.lower()}-")]
    match = longer or difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    return lower[match[0]] if match else None


def near(word: str, candidates: Iterable[str]) -> list[str]:
    """Returns up to MAX_NEAR candidates similar to `word` or that share a part of its name, the most similar first."""
    known = list(candidates)
    alike = difflib.get_close_matches(word.lower(), known, n=MAX_NEAR, cutoff=0.6)
    parts = set(word.lower().replace("_", "-").split("-"))
    sharing = [name for name in known if parts & set(name.split("-"))]
    return list(dict.fromkeys([*alike, *sharing]))[:MAX_NEAR]


def read_source(path_or_example: str) -> Source:
    """Reads a recipe file or example.

    Raises BadInputError if there is none, or it is not a YAML mapping with distinct keys.
    """
    file = source_file(path_or_example)
    return parse_source(_read_file(file), name=path_or_example if file == Path(path_or_example) else file.name)


def source_file(path_or_example: str) -> Path:
    """Returns the file of that path, existing or not, or that of a packaged example."""
    if path_or_example in packaged_examples() and not Path(path_or_example).is_file():
        return Path(str(files("trainer.recipe") / "examples" / f"{path_or_example}.yaml"))
    return Path(path_or_example)


def parse_source(text: str, *, name: str) -> Source:
    """Parses YAML text as a `Source`. Raises BadInputError if it is not a YAML mapping with distinct keys."""
    lines: dict[KeyPath, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if values_in(root) > MAX_VALUES:
            raise refused(name, "its aliases expand to more values than a recipe has", "write them out")
        problems = [] if root is None else _walk(root, (), lines, name)  # before merge keys (`<<`) are expanded
        data = None if root is None else loader.construct_document(root)
    except RecursionError:
        what = "it is nested too deeply to be read, or an alias contains itself"
        raise refused(name, what, "flatten it, without aliases") from None
    except BadInputError:
        raise
    except yaml.MarkedYAMLError as error:
        raise refused(*_yaml_problem(name, error)) from None
    except (yaml.YAMLError, ValueError) as error:  # a character YAML forbids; a date that is none
        raise refused(name, f"it is not YAML: {error}", "a recipe is a YAML file: see `moe-autotune init`") from None
    if root is None or data is None:
        raise refused(name, "the file is empty", "start from `moe-autotune init`, or name a packaged example")
    if not isinstance(root, yaml.MappingNode):
        raise refused(name, "it has no keys", "a recipe is a mapping: `model: …`, `cluster: …` and so on")
    if problems:
        raise BadInputError(*problems)
    return Source(name=name, data=data, lines=lines)


_SHOWN = 5  # most files of a folder that an error names


def _read_file(path: Path) -> str:
    """Returns the file's text.

    Raises BadInputError for a folder, a pipe, a device, more than 1 MiB, or content that is not text.
    """
    name = str(path)
    instead = "a recipe is a YAML file; traces go to `diagnose`"
    if path.is_dir():
        instead = f"name a file in it{_nearby(path / 'x', name)}"
    try:
        return text_of(path, where=name, instead=instead)
    except FileNotFoundError:
        raise refused(name, "no such file or packaged example", _missing_hint(path)) from None


def _missing_hint(path: Path) -> str:
    return f"packaged examples: {', '.join(packaged_examples())}{_nearby(path, path.name)}"


def _nearby(path: Path, word: str) -> str:
    """Returns the end of a sentence that names the YAML file in the folder of `path` most similar to `word`, or the
    first ones there."""
    folder = path.parent
    there = sorted(p.name for p in folder.glob("*.y*ml") if p.name != path.name) if folder.is_dir() else []
    found = nearest(word, [*there, *packaged_examples()])
    if found:
        return f"; did you mean {folder / found if found in there else found}?"
    return f"; in {folder} there are {', '.join(there[:_SHOWN])}" if there else ""


def _yaml_problem(name: str, error: yaml.MarkedYAMLError) -> tuple[str, str, str]:
    mark = error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}" if mark else name
    what = f"it is not YAML: {error.problem or error.context}"
    return where, what, "check the indentation, quotes and brackets on this line and the one above"


def _walk(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], name: str) -> list[Problem]:
    """Fills `lines`; returns a problem for each key written twice, of which YAML would keep the last."""
    problems: list[Problem] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            line = key.start_mark.line + 1
            if here in lines:
                where = f"{name}:{line} {'.'.join(map(str, here))}"
                problems.append(
                    Problem(where=where, what=f"written twice, first on line {lines[here]}", hint="keep one of them")
                )
            lines[here] = line
            problems += _walk(value, here, lines, name)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, index)] = value.start_mark.line + 1
            problems += _walk(value, (*path, index), lines, name)
    return problems
