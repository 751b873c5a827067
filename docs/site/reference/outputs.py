"""Exit codes, and the fields of every JSON document, from the types that are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, get_args

import msgspec

from analyzers.diagnosis import Analysis
from autotune.cli import app
from autotune.compare.comparison import Comparison
from autotune.exit_codes import MEANINGS
from autotune.report.document import Document
from autotune.studies.gathered import Gathered
from autotune.tuning.events import Event
from autotune.tuning.standing import Standing
from docs.site.page import Page, code, table
from docs.site.reference.types import hints_of, remarks_of, type_words

DOCUMENTS: dict[str, tuple[type[Any], str]] = {
    "report.json": (Document, "of a study; also what `run --json` and `report --json` print"),
    "diagnose --json": (Analysis, "of traces"),
    "compare --json": (Comparison, "of two traces or trials"),
    "status --json": (Standing, "where a study stands"),
    "studies --json": (Gathered, "the studies of a folder"),
}


EXAMPLE = "deepseek-v3-1024xh100"
PRINTED: dict[str, list[str]] = {
    "check": ["check", EXAMPLE],
    "estimate": ["estimate", EXAMPLE],
    "plan": ["plan", EXAMPLE, "--top", "1"],
    "export": ["export", EXAMPLE, "--to", "yaml"],
}
MOST_KEYS = 40  # of one object; more are values, not fields


def pages() -> Iterator[Page]:
    codes = table(("code", "means"), [(str(number), words) for number, words in MEANINGS.items()])
    parts = [
        "# Exit codes and JSON\n\n## Exit codes\n\n", codes,
        '\n\n## JSON\n\nEvery document has `"schema": 1`. Within a schema fields are added, never renamed or dropped. '
        "Units are in the names; `null` is what is not known. A command that fails prints "
        '`{"schema": 1, "error": {"code", "problems": [{"where", "what", "hint"}]}}`.\n',
    ]  # fmt: skip
    for name, (kind, said) in DOCUMENTS.items():
        parts.append(f"\n## {name}\n\n{said[0].upper()}{said[1:]}.\n\n" + "\n".join(_structs(kind)))
    for name, words in PRINTED.items():
        rows = [(code(path), kind) for path, kind in _shape(_printed(words))]
        parts.append(f"\n## {name} --json\n\nAs `moe-autotune {' '.join(words)} --json` prints it.\n\n")
        parts.append(table(("field", "is"), rows) + "\n")
    parts.append("\n## journal.jsonl\n\nOne event a line, told apart by `event`; the truth of a study.\n\n")
    for kind in get_args(Event):
        tag = kind.__struct_config__.tag
        parts.append(f"\n### event {tag}\n\n{_doc(kind)}\n\n{_fields(kind)}\n")
    yield Page(path="outputs.html", title="Exit codes and JSON", markdown="".join(parts), group="Reference")


def _structs(kind: type[Any]) -> Iterator[str]:
    """The document, then every type its fields are made of, each once."""
    seen: list[type[Any]] = []
    _gather(kind, seen)
    for each in seen:
        heading = "" if each is kind else f"\n### {each.__name__}\n\n"
        yield f"{heading}{_doc(each)}\n\n{_fields(each)}\n"


def _gather(kind: Any, seen: list[type[Any]]) -> None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.append(kind)
        for hint in hints_of(kind).values():
            _gather(hint, seen)
    for part in get_args(kind):
        _gather(part, seen)


def _fields(kind: type[Any]) -> str:
    hints, remarks = hints_of(kind), remarks_of(kind)
    fields = [(each.encode_name, each.name) for each in msgspec.structs.fields(kind)]
    rows = [(code(written), type_words(hints[name]), _plain(remarks.get(name, ""))) for written, name in fields]
    return table(("field", "is", "what"), rows)


def _shape(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, type) of everything in a document; of a list its first item stands for all."""
    if isinstance(value, dict):
        for key, inside in list(value.items())[:MOST_KEYS]:
            yield from _shape(inside, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from _shape(value[0], f"{path}[]")
    else:
        yield path, type_words(type(value)) if not isinstance(value, list) else "list"


def _printed(words: list[str]) -> Any:
    """What a command prints with --json, run here."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        answer = app()(words, exit_on_error=False, print_error=False)
    return json.loads(msgspec.json.encode(answer.document))


def _doc(kind: type[Any]) -> str:
    """Signatures that Python makes by itself are no words."""
    text = " ".join((kind.__doc__ or "").split())
    return "" if text.startswith(f"{kind.__name__}(") else _plain(text)


def _plain(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "&lt;")
