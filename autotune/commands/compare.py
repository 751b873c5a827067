"""`moe-autotune compare`: shows two traces, or two trials of a study, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer, Force, PageFile

Traces = Annotated[
    Path,
    Parameter(
        help="A trace file, a folder of one job's traces, a burst's run folder, or a trial of a study as STUDY/NUMBER."
    ),
]


def compare(a: Traces, b: Traces, *, html: PageFile = None, force: Force = False) -> Answer:
    """Show what moved between two traces or two trials, by part, by kernel class and by kernel."""
    from analyzers.diagnosis import WHOLE
    from autotune.compare.comparison import compared
    from autotune.compare.terminal import show_comparison
    from autotune.diagnose.traced import analysis_at, input_files, untraced_step_us
    from autotune.looks.working import counting
    from autotune.output import page_at

    page = page_at(html, inputs=input_files((a, b)), force=force)
    with counting("reading traces") as progress:
        analyses = [analysis_at(path, WHOLE, progress) for path in (a, b)]
    found = compared(
        *analyses,
        same=a.resolve() == b.resolve(),
        steps_us=(untraced_step_us(a), untraced_step_us(b)),
    )
    if page is not None:
        from autotune.compare.page import comparison_page

        page.write(comparison_page(found, (str(a), str(b))))
    show_comparison(found)
    if page is not None:
        print(f"page: {page.path}")
    return Answer(document=found)
