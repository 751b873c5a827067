"""A file of arguments: flags one or several a line, or a YAML mapping of them (`MODEL_ARGS:` and `ENV_VARS:`)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from autotune.importing.found import Asked, Started, refused

ARGUMENTS = "MODEL_ARGS"
ENVIRONMENT = "ENV_VARS"
PROGRAM = ("python", "pretrain_gpt.py")


def from_text(text: str, asked: Asked) -> Started:
    """Flags as one would type them; `#` begins a comment."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise refused(asked.file, f"it cannot be read as words: {str(error).lower()}", "check its quotes") from None
    argv = [_filled(word, asked) for word in words]
    return Started(program=PROGRAM, argv=tuple(argv), notes=_program_note())


def from_yaml(data: Mapping[str, Any], asked: Asked) -> Started:
    """A mapping of flags: true stands for the flag alone, false for none, a list for several values."""
    arguments = data.get(ARGUMENTS, data)
    argv = tuple(_filled(word, asked) for flag, value in arguments.items() for word in _words(str(flag), value))
    env = {str(name): _filled(str(value), asked) for name, value in (data.get(ENVIRONMENT) or {}).items()}
    left = [key for key in data if ARGUMENTS in data and key not in (ARGUMENTS, ENVIRONMENT)]
    notes = (f"not read: {', '.join(map(str, left))}",) if left else ()
    return Started(program=PROGRAM, argv=argv, env=env, notes=(*_program_note(), *notes))


def is_arguments(data: Any) -> bool:
    """Whether a YAML document is a mapping of flags."""
    if not isinstance(data, dict):
        return False
    inner = data.get(ARGUMENTS, data)
    return isinstance(inner, dict) and bool(inner) and all(str(key).startswith("--") for key in inner)


def _words(flag: str, value: Any) -> Iterator[str]:
    if value is False:
        return
    yield flag
    if value is None or value is True:
        return
    if isinstance(value, list):
        yield from map(str, value)
    elif isinstance(value, str) and flag not in _WHOLE:
        yield from _split(value)
    else:
        yield str(value)


_WHOLE = frozenset({"--moe-layer-freq", "--pipeline-model-parallel-layout"})  # one word, whatever it holds


def _split(text: str) -> list[str]:
    """Several values in one text; a quote that is not closed is a letter."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _filled(word: str, asked: Asked) -> str:
    """A word whose {NAME} or ${NAME} was given by --set."""
    for name, value in asked.given.items():
        word = word.replace("${" + name + "}", value).replace("{" + name + "}", value)
    return word


def _program_note() -> tuple[str, ...]:
    return (f"it names no program: {' '.join(PROGRAM)} was written down, change trainer.command if it is another",)


def read_yaml(text: str) -> Any:
    """The document, or None where the text is no YAML."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return None
