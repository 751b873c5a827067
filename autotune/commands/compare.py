"""`moe-autotune compare`: two traces, or two bursts of a study, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer

Traces = Annotated[Path, Parameter(help="A trace file, a folder of one job's traces, or a burst's run folder.")]


def compare(a: Traces, b: Traces) -> Answer:
    """Show what moved between two traces or two bursts."""
    from analyzers import analyze
    from autotune.show import show_comparison

    before, after = analyze([a]), analyze([b])
    show_comparison(before, after)
    return Answer(document={"schema": 1, "a": before, "b": after})
