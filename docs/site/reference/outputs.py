"""Exit codes, and the fields of every JSON document, from the types that are written."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from analyzers.diagnosis import Analysis
from autotune.compare.comparison import Comparison
from autotune.exit_codes import MEANINGS
from autotune.report.document import Document
from autotune.studies.gathered import Gathered
from autotune.tuning.events import Event
from autotune.tuning.standing import Standing
from docs.site.page import Page, code, table

DOCUMENTS: dict[str, tuple[type[Any], str]] = {
    "report.json": (Document, "of a study; also what `run --json` and `report --json` print"),
    "diagnose --json": (Analysis, "of traces"),
    "compare --json": (Comparison, "of two traces or trials"),
    "status --json": (Standing, "where a study stands"),
    "studies --json": (Gathered, "the studies of a folder"),
}


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
        for hint in get_type_hints(kind).values():
            _gather(hint, seen)
    for part in get_args(kind):
        _gather(part, seen)


def _fields(kind: type[Any]) -> str:
    hints = get_type_hints(kind)
    return table(
        ("field", "is"), [(code(each.encode_name), _type(hints[each.name])) for each in msgspec.structs.fields(kind)]
    )


def _type(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if hint is type(None):
        return "null"
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in parts)
    if origin in (list, tuple):
        inside = dict.fromkeys(_type(part) for part in parts if part is not Ellipsis)
        return f"list of {', '.join(inside)}"
    if origin is dict:
        return f"{_type(parts[0])} → {_type(parts[1])}"
    if parts:  # of a Literal
        return ", ".join(map(str, parts))
    return str(getattr(hint, "__name__", hint))


def _doc(kind: type[Any]) -> str:
    """Dataclass-like signatures that Python makes by itself are no words."""
    text = " ".join((kind.__doc__ or "").split())
    return "" if text.startswith(f"{kind.__name__}(") else text.replace("*", "\\*")
