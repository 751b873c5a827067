"""Counts the values of a YAML document with its aliases expanded, before any value is constructed."""

from __future__ import annotations

import yaml


def values_in(root: yaml.Node | None) -> int:
    """Counts the values of a composed document; those of an alias count at every use.

    Raises RecursionError for an alias that contains itself and for a document that is nested too deeply.
    """
    return 0 if root is None else _values_in(root, {}, set())


def _values_in(node: yaml.Node, known: dict[int, int], open_: set[int]) -> int:
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in open_:
        raise RecursionError
    if id(node) not in known:
        open_.add(id(node))
        inner = [each for pair in node.value for each in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_values_in(each, known, open_) for each in inner)
        open_.remove(id(node))
    return known[id(node)]
