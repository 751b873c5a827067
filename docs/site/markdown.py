"""Renders Markdown to HTML, with anchors at headings, and links to documents resolved to their pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

Resolve = Callable[[str], str | None]  # link as written → its target; None if there is no page for it


@dataclass(frozen=True, kw_only=True)
class Rendered:
    html: str
    anchors: frozenset[str]
    links: tuple[str, ...]  # targets in the HTML, pictures included
    summary: str  # the first paragraph, as plain text


def rendered(text: str, resolve: Resolve) -> Rendered:
    """Renders one page. A link for which `resolve` returns None becomes plain text."""
    parser = _parser()
    tokens = parser.parse(text)
    anchors = _anchored(tokens)
    links = [link for token in tokens if token.children for link in _resolved(token.children, resolve)]
    html = str(parser.renderer.render(tokens, parser.options, {}))
    html = html.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")
    return Rendered(html=html, anchors=frozenset(anchors), links=tuple(links), summary=_summary(tokens))


@cache
def _parser() -> MarkdownIt:
    """Returns the parser; to make one takes as long as to render a page."""
    return MarkdownIt("commonmark").enable("table")


def anchor(heading: str) -> str:
    """Returns the anchor of a heading as GitHub makes it: lower case, spaces to hyphens, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _anchored(tokens: Sequence[Token]) -> list[str]:
    found: list[str] = []
    for opening, inside in pairwise(tokens):
        if opening.type == "heading_open":
            name = anchor(_text(inside))
            same = sum(each == name or each.startswith(f"{name}-") for each in found)
            found.append(f"{name}-{same}" if name in found else name)
            opening.attrSet("id", found[-1])
    return found


def _resolved(tokens: list[Token], resolve: Resolve) -> list[str]:
    """Rewrites links and pictures in place and returns their targets; a link without a page becomes plain text."""
    links: list[str] = []
    dropped = False
    for token in tokens:
        if token.type == "link_open":
            target = resolve(str(token.attrs["href"]))
            dropped = target is None
            if target is None:
                token.type, token.tag, token.nesting, token.attrs = "text", "", 0, {}
            else:
                token.attrs["href"] = target
                links.append(target)
        elif token.type == "link_close" and dropped:
            token.type, token.tag, token.nesting, dropped = "text", "", 0, False
        elif token.type == "image":
            target = resolve(str(token.attrs["src"])) or ""
            token.attrs["src"] = target
            links.append(target)
    return links


def _summary(tokens: Sequence[Token]) -> str:
    starts = (index for index, token in enumerate(tokens) if token.type == "paragraph_open")
    first = next(starts, None)
    return "" if first is None else _text(tokens[first + 1])


def _text(inline: Token) -> str:
    return "".join(" " if token.type == "softbreak" else token.content for token in inline.children or [])
