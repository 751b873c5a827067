"""Renders the call tree of ranges as nested, collapsible elements that also work with the keyboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

from analyzers.range_tree import Node
from autotune.looks.kernel_names import printable, short_name
from autotune.looks.quantities import duration
from autotune.looks.svg import tag

NODES = 400  # most nodes in the page
OPEN_DEPTH = 2
NAME_CHARACTERS = 90


def nested(nodes: Sequence[Node]) -> Markup:
    """Renders the nodes (depth first) as nested `details` elements."""
    shown = list(nodes[:NODES])
    left = len(nodes) - len(shown)
    note = tag("p", f"{left} more nodes are not shown.", class_="note") if left else Markup("")
    return Markup("").join([*_siblings(shown, 0, len(shown)), note])


def _siblings(nodes: Sequence[Node], start: int, end: int) -> Iterator[Markup]:
    """Yields the elements of nodes[start:end], the first of which has the least depth among them."""
    at = start
    while at < end:
        until = next((k for k in range(at + 1, end) if nodes[k].depth <= nodes[at].depth), end)
        yield _fold(nodes, at, until)
        at = until


def _fold(nodes: Sequence[Node], at: int, until: int) -> Markup:
    node = nodes[at]
    line = _line(node)
    if until == at + 1:
        return tag("p", line, class_="leaf")
    inside = Markup("").join(_siblings(nodes, at + 1, until))
    opened = Markup(" open") if node.depth < OPEN_DEPTH else Markup("")
    return Markup('<details class="node"{}>{}{}</details>').format(opened, tag("summary", line), inside)


def _line(node: Node) -> Markup:
    device = f", {duration(node.device_us)} on the device in {node.kernels:,} kernels" if node.kernels else ""
    times = f"{node.count:,} × " if node.count > 1 else ""
    name = tag("code", escape(short_name(node.name, NAME_CHARACTERS)), title_=printable(node.name)[:600])
    return Markup('{} <span class="note">{}{} on the host{}</span>').format(name, times, duration(node.host_us), device)
