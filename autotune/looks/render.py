"""From a template to the whole page: the style sheet is inside, and so is everything else."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

ROOMS = (
    "looks",
    "compare",
    "diagnose",
    "estimate",
    "plan",
    "report",
    "studies",
)  # folders with templates, searched in order


def render(template: str, **values: Any) -> str:
    """The page of a template of `ROOMS`. Names that the template asks for and `values` lacks raise."""
    return (
        _environment().get_template(template).render(css=Markup(_text("page.css")), page_js=script("page.js"), **values)
    )


def script(name: str) -> Markup:
    """A script of ours, to stand in a page."""
    return Markup(_text(name))


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _text(name: str) -> str:
    found = (files("autotune") / room / name for room in ROOMS)
    return next(file for file in found if file.is_file()).read_text(encoding="utf-8")
