"""Terminal output of `doctor`: what is installed, then what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from autotune.looks.wrapping import plain_console

if TYPE_CHECKING:
    from autotune.doctor.checks import Found


def show_doctor(found: Sequence[Found]) -> None:
    """Prints what was found, then what is missing, what it is needed for and how to get it."""
    console = plain_console()
    here = Table("found", "", box=None, show_header=False, padding=(0, 2, 0, 0))
    for one in found:
        if one.status == "found":
            here.add_row(Text(one.what, style="green"), one.found)
    console.print(here)
    for one in found:
        if one.status == "missing":
            console.print()
            console.print(Text.assemble((f"missing: {one.what}", "yellow"), f", needed for {one.needed_for}"))
            if one.how:
                console.print(f"  → {one.how}")
