"""Renders a template to a self-contained page with its style sheet and scripts inline."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

TEMPLATE_FOLDERS = (
    "looks",
    "bisect",
    "compare",
    "diagnose",
    "estimate",
    "gap",
    "plan",
    "report",
    "studies",
)  # folders with templates, searched in order
LONG_NAME = re.compile(r"\w{18,}")  # such a name is wider than a column on a page of 600 px
CODE = re.compile(r"`([^`]+)`")


def render(template: str, **values: Any) -> str:
    """Renders a template of TEMPLATE_FOLDERS to a page. Raises UndefinedError if `values` lacks a name that it uses."""
    return (
        _environment().get_template(template).render(css=Markup(_text("page.css")), page_js=script("page.js"), **values)
    )


def coded(text: str) -> Markup:
    """Returns escaped text with `backticks` rendered as code."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))


def breakable(text: str) -> Markup:
    """Returns escaped text that may wrap after the underscores of long names."""
    return Markup(LONG_NAME.sub(lambda name: name[0].replace("_", "_<wbr/>"), str(escape(text))))


def script(name: str) -> Markup:
    """Returns the text of a script file in TEMPLATE_FOLDERS, to embed in a page."""
    return Markup(_text(name))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["coded"] = coded
    made.filters["breakable"] = breakable
    return made


def _text(name: str) -> str:
    found = (files("autotune") / room / name for room in TEMPLATE_FOLDERS)
    return next(file for file in found if file.is_file()).read_text(encoding="utf-8")
