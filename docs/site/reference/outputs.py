"""The exit codes, the fields of every JSON document, and its JSON Schema as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.exit_codes import MEANINGS
from autotune.schemas.documents import DOCUMENTS
from autotune.schemas.schema import schema_of
from docs.site.markdown import anchor
from docs.site.page import Page, code, plain, table

PLAIN = {"string": "text", "integer": "whole number", "boolean": "true or false", "object": "mapping", "array": "list"}


def schema_files() -> Iterator[tuple[str, str]]:
    """Yields (path below the site's root, text) of each schema."""
    for name in DOCUMENTS:
        yield _file(name), json.dumps(schema_of(name), indent=1, ensure_ascii=False) + "\n"


def pages() -> Iterator[Page]:
    codes = table(("code", "means"), [(str(number), words) for number, words in MEANINGS.items()])
    rows = [(f"[{name}](#{anchor(_title(name))})", one.summary, f"[{_file(name)}]({_file(name)})")
            for name, one in DOCUMENTS.items()]  # fmt: skip
    parts = [
        "# Exit codes and JSON\n\n## Exit codes\n\n", codes,
        '\n\n## JSON\n\nEvery document has `"schema": 1`. Within a schema fields are added, never renamed or dropped. '
        "Units are in the names; `null` means not known. A command that fails prints the document `error`. "
        "`moe-autotune schema NAME` prints the JSON Schema of a document.\n\n",
        table(("document", "is", "JSON Schema"), rows), "\n",
    ]  # fmt: skip
    for name in DOCUMENTS:
        schema = schema_of(name)
        parts.append(f"\n## {_title(name)}\n\n{schema['description']}.\n")
        for part in _in_order(schema):
            parts.append(f"\n### {part}\n\n{_object(schema['$defs'][part])}\n")
    yield Page(path="outputs.html", title="Exit codes and JSON", markdown="".join(parts), group="Reference")


def _title(name: str) -> str:
    """Returns a document's heading; types have headings of their own, such as `Outcome`."""
    return f"Document {name}"


def _file(name: str) -> str:
    return f"schemas/{name}.schema.json"


def _in_order(schema: Mapping[str, Any]) -> list[str]:
    """Returns the document's own types first, then those they refer to, in order of reference."""
    found: list[str] = []
    _meet({key: value for key, value in schema.items() if key != "$defs"}, schema["$defs"], found)
    return found


def _meet(value: Any, parts: Mapping[str, Any], found: list[str]) -> None:
    if isinstance(value, list):
        for each in value:
            _meet(each, parts, found)
    elif isinstance(value, dict):
        part = _part(value)
        if part is not None and part not in found:
            found.append(part)
            _meet(parts[part], parts, found)
        for each in value.values():
            _meet(each, parts, found)


def _part(value: Mapping[str, Any]) -> str | None:
    """Returns the name of the type that a schema refers to; None without a reference."""
    named = value.get("$ref")
    return named.rpartition("/")[2] if isinstance(named, str) else None


def _object(part: Mapping[str, Any]) -> str:
    said = plain(part.get("description", ""))
    if "properties" not in part:
        return " ".join(filter(None, (said, f"One of {_choices(part)}.")))
    rows = [(code(name), _words(about), plain(about.get("description", ""))) for name, about in _fields(part)]
    return f"{said}\n\n{table(('field', 'is', 'what'), rows)}"


def _fields(part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from part["properties"].items()


def _words(about: Mapping[str, Any]) -> str:
    """Returns `list of number`, `text or null`, `text → number`; a type with its own heading by its name."""
    if part := _part(about):
        return part
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(_words(each) for each in about["anyOf"]))
    if "enum" in about or "const" in about:
        return _choices(about)
    kind = str(about.get("type", "anything"))
    if kind == "array":
        return "list of " + ", ".join(dict.fromkeys(_items(about)))
    if isinstance(about.get("additionalProperties"), dict):
        return f"text → {_words(about['additionalProperties'])}"
    return PLAIN.get(kind, kind)


def _items(about: Mapping[str, Any]) -> Iterator[str]:
    for each in about.get("prefixItems", ()):
        yield _words(each)
    if isinstance(items := about.get("items"), dict):
        yield _words(items) or "anything"


def _choices(about: Mapping[str, Any]) -> str:
    return ", ".join(code(each) for each in about.get("enum", [about.get("const")]))
