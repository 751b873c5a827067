"""From a template to the whole page: the style sheet is inside, and so is everything else."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

ROOMS = (
    "looks",
    "compare",
    "diagnose",
    "estimate",
    "plan",
    "report",
    "studies",
)  # folders with templates, searched in order
CODE = re.compile(r"`([^`]+)`")


def render(template: str, **values: Any) -> str:
    """The page of a template of `ROOMS`. Names that the template asks for and `values` lacks raise."""
    return (
        _environment().get_template(template).render(css=Markup(_text("page.css")), page_js=script("page.js"), **values)
    )


def coded(text: str) -> Markup:
    """Text in which `backticks` mark code, as code."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))


def script(name: str) -> Markup:
    """A script of ours, to stand in a page."""
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
    return made


def _text(name: str) -> str:
    found = (files("autotune") / room / name for room in ROOMS)
    return next(file for file in found if file.is_file()).read_text(encoding="utf-8")
