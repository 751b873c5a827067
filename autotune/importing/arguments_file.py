"""Reads a file of arguments: flags, one or more per line, or a YAML mapping of them (`MODEL_ARGS:` and `ENV_VARS:`)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from autotune.importing.found import ImportOptions, Started
from trainer.errors import BadInputError, Problem, refused
from trainer.frameworks.registry import readers
from trainer.recipe.aliases import values_in

ARGUMENTS = "MODEL_ARGS"
ENVIRONMENT = "ENV_VARS"
MAX_VALUES = 200_000  # values of a document after its aliases are expanded
_VARIABLE = re.compile(
    r"\$(?P<plain>[A-Za-z_]\w*)|\$\{(?P<braced>[A-Za-z_]\w*)(?::?-(?P<default>[^}$]*))?\}|\{(?P<bare>[A-Za-z_]\w*)\}"
)
_OPEN = re.compile(r"\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)[^}]*\}|(?<!\$)\{([A-Z][A-Z0-9_]*)\}|\$\([^)]*\)|`[^`]*`")


class TooMuchError(Exception):
    """A YAML document whose aliases expand to more than MAX_VALUES values."""


def from_text(text: str, options: ImportOptions) -> Started:
    """Reads flags as typed in a shell; `#` starts a comment."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise refused(
            options.file, f"it cannot be split into words: {str(error).lower()}", "check its quotes"
        ) from None
    argv = [_filled(word, options) for word in words]
    _refuse_open(argv, options)
    return Started(program=_program(), argv=tuple(argv), notes=_program_note())


def from_yaml(data: Mapping[str, Any], options: ImportOptions) -> Started:
    """Reads a mapping of flags: true is the flag alone, false leaves it out, a list gives several values, and so does
    text with spaces outside quotes."""
    arguments = data.get(ARGUMENTS, data)
    argv = tuple(_filled(word, options) for flag, value in arguments.items() for word in _words(str(flag), value))
    env = {str(name): _filled(str(value), options) for name, value in (data.get(ENVIRONMENT) or {}).items()}
    _refuse_open(argv, options, env=env.values())
    left = [key for key in data if ARGUMENTS in data and key not in (ARGUMENTS, ENVIRONMENT)]
    notes = (f"not read: {', '.join(map(str, left))}",) if left else ()
    return Started(program=_program(), argv=argv, env=env, notes=(*_program_note(), *notes))


def is_arguments(data: Any) -> bool:
    """Returns whether a YAML document is a mapping of flags."""
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
    elif isinstance(value, str) and not any(flag in reader.whole_flags for _, reader in readers()):
        yield from _split(value)
    else:
        yield str(value)


def _split(text: str) -> list[str]:
    """Splits several values in one text as a shell does; at spaces if a quote is not closed."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _filled(word: str, options: ImportOptions) -> str:
    """Replaces $NAME, ${NAME} and {NAME} by the value of --set, or else by the default in ${NAME:-default}."""

    def value(match: re.Match[str]) -> str:
        name = next(each for each in match.group("plain", "braced", "bare") if each)
        default = match["default"]
        return options.given.get(name, match[0] if default is None else default)

    return _VARIABLE.sub(value, word)


def _refuse_open(argv: Iterable[str], options: ImportOptions, *, env: Iterable[str] = ()) -> None:
    """Raises BadInputError for variables and commands in the arguments: no shell expands them here."""
    flag, problems = "", dict[str, Problem]()
    unused = frozenset[str]().union(*(reader.unused for _, reader in readers()))
    for word in (*argv, *env):
        flag = word.partition("=")[0] if word.startswith("--") else flag
        for match in () if flag in unused else _OPEN.finditer(word):
            name = next((each for each in match.groups() if each), None)
            hint = f"--set {name}=VALUE" if name else "write its value"
            problems[match[0]] = Problem(
                where=options.file, what=f"{match[0]}: not set in a file of arguments", hint=hint
            )
    if problems:
        raise BadInputError(*problems.values())


def _program() -> tuple[str, ...]:
    """Returns the program that is assumed for a file without one."""
    return next(reader.program for _, reader in readers() if reader.program)


def _program_note() -> tuple[str, ...]:
    return (f"no program in it: {' '.join(_program())} is assumed, change trainer.command if it is another",)


def read_yaml(text: str) -> Any:
    """Reads the document; returns None if the text is not YAML.

    Raises RecursionError for a document that contains itself, TooMuchError for one with too many values.
    """
    try:
        if values_in(yaml.compose(text, Loader=yaml.SafeLoader)) > MAX_VALUES:
            raise TooMuchError("its aliases expand to more values than can be read")
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return None


def read_texts(text: str) -> Any:
    """Reads the document and keeps values as they are written: 12:30 and 010 stay text, and so does `on`."""
    return yaml.load(text, Loader=_Texts)


class _Texts(yaml.SafeLoader):
    """Loads YAML in which only true, false and null are not text."""


_Texts.yaml_implicit_resolvers = {}
_Texts.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF"))
_Texts.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""])
_Texts.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<"), ["<"])
