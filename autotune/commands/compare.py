"""`moe-autotune compare`: two traces, or two trials of a study, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer

Traces = Annotated[
    Path,
    Parameter(
        help="A trace file, a folder of one job's traces, a burst's run folder, or a trial of a study as STUDY/NUMBER."
    ),
]


def compare(a: Traces, b: Traces) -> Answer:
    """Show what moved between two traces or two trials, by part, by kernel class and by kernel."""
    from autotune.comparison import compared
    from autotune.show_comparison import show_comparison
    from autotune.traced import analysis_at

    found = compared(analysis_at(a), analysis_at(b), same=a.resolve() == b.resolve())
    show_comparison(found)
    return Answer(document=found)
