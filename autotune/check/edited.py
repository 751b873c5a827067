"""Changes some knobs in a recipe's YAML text and keeps its comments, its order and everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from trainer.recipe.knobs import KNOBS
from trainer.recipe.validation import ALIASES

Edit = tuple[int, int, str]  # start, end, replacement
Entry = tuple[yaml.Node, yaml.Node]


def edited(text: str, values: Mapping[str, Any]) -> str:
    """Returns `text`, a mapping in YAML, with each knob at its value: replaced where it is written, else added to its
    section."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    for start, end, instead in sorted(_edits(text, root, values), reverse=True):
        text = text[:start] + instead + text[end:]
    return text


def _edits(text: str, root: yaml.MappingNode, values: Mapping[str, Any]) -> Iterator[Edit]:
    by_section: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        by_section.setdefault(KNOBS[name].section, {})[name] = value
    for section, wanted in by_section.items():
        node = _written(root).get(section, (None, None))[1]
        if isinstance(node, yaml.MappingNode):
            yield from _in_section(text, node, wanted)
        elif node is not None:  # the key has an empty or scalar value
            yield node.start_mark.index, node.end_mark.index, f" {_flow(wanted)}"
        else:
            yield _added(text, root, f"{section}: {_flow(wanted)}")


def _in_section(text: str, section: yaml.MappingNode, wanted: Mapping[str, Any]) -> Iterator[Edit]:
    there = _written(section)
    for name in [name for name in wanted if name in there]:
        key, value = there[name]
        if isinstance(value, yaml.CollectionNode) and not value.flow_style:  # on lines of its own, perhaps not indented
            yield key.end_mark.index, _end(value), f": {_one(wanted[name])}"
        else:
            yield value.start_mark.index, value.end_mark.index, _one(wanted[name])
    if missing := [f"{name}: {_one(value)}" for name, value in wanted.items() if name not in there]:
        yield _added(text, section, *missing)


def _added(text: str, mapping: yaml.MappingNode, *lines: str) -> Edit:
    """Returns the edit that adds keys after the last one: inside its braces, or on lines of their own."""
    last = _end(mapping.value[-1][1]) if mapping.value else mapping.end_mark.index - 1
    if mapping.flow_style:
        return last, last, ", " * bool(mapping.value) + ", ".join(lines)
    indent = " " * mapping.value[0][0].start_mark.column
    at = text.find("\n", last)
    at = len(text) if at < 0 else at
    return at, at, "".join(f"\n{indent}{line}" for line in lines)


def _written(mapping: yaml.MappingNode) -> dict[str, Entry]:
    """Returns knob or section name → (key node, value node), with aliases resolved."""
    return {ALIASES.get(key.value, key.value): (key, value) for key, value in mapping.value}


def _end(node: yaml.Node) -> int:
    """Returns the offset where a value ends.

    PyYAML's own mark of a value on several lines is after the comments that follow.
    """
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _one(value: Any) -> str:
    return _flow({"k": value}).removeprefix("{k: ").removesuffix("}")


def _flow(values: Mapping[str, Any]) -> str:
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return str(yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=10**6)).strip()
