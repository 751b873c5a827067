"""From types to JSON Schema (2020-12): fields and types as msgspec writes them, words from the source.

What stands behind a field as a comment is its description, a class's docstring that of the object. Fields may be added
to a document within a schema, so what is not listed is not forbidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec

from autotune.schemas.documents import DOCUMENTS
from autotune.schemas.plain import Name
from autotune.schemas.remarks import is_ours, remarks_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(name: Name) -> dict[str, Any]:
    """The JSON Schema of a document."""
    document = DOCUMENTS[name]
    refs, parts = msgspec.json.schema_components(document.types)
    classes = {kind.__name__: kind for kind in classes_of(*document.types)}
    for part, schema in parts.items():
        _describe(schema, classes[part])
    one_of: dict[str, Any] = dict(refs[0]) if len(refs) == 1 else {"anyOf": list(refs)}
    return {"$schema": DIALECT, "title": name, "description": _said(name), **one_of, "$defs": parts}


def classes_of(*types: Any) -> set[type[Any]]:
    """Every class of ours that these are made of."""
    found: set[type[Any]] = set()
    for kind in types:
        _gather(kind, found)
    return found


def _gather(kind: Any, found: set[type[Any]]) -> None:
    if isinstance(kind, type) and is_ours(kind) and kind not in found:
        found.add(kind)
        for hint in get_type_hints(kind).values():
            _gather(hint, found)
    for part in get_args(kind):
        _gather(part, found)


def _describe(schema: dict[str, Any], kind: type[Any]) -> None:
    """Docstring and remarks; a signature that Python makes by itself is no word."""
    said = " ".join(schema.pop("description", "").split())
    if said and not said.startswith(f"{kind.__name__}("):
        schema["description"] = said
    remarks, properties = remarks_of(kind), schema.get("properties", {})
    for field, remark in remarks.items():
        if field in properties:
            properties[field]["description"] = remark
    in_order = dict.fromkeys((*get_type_hints(kind), *properties))
    schema |= (
        {"properties": {field: properties[field] for field in in_order if field in properties}} if properties else {}
    )


def _said(name: Name) -> str:
    return ". ".join(_sentences(name))


def _sentences(name: Name) -> Iterator[str]:
    document = DOCUMENTS[name]
    yield document.said if document.of_file else document.said[0].upper() + document.said[1:]
    if document.commands:
        yield "As printed by " + " and ".join(f"`moe-autotune {command} --json`" for command in document.commands)
