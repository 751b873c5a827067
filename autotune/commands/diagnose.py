"""`moe-autotune diagnose`: traces of one job in, the partition of every step and the walls out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer, Force, PageFile


def diagnose(
    *traces: Annotated[
        Path, Parameter(help="Trace files of one job, a folder of them, or a trial of a study as STUDY/NUMBER.")
    ],
    html: PageFile = None,
    force: Force = False,
) -> Answer:
    """Name the wall that costs a training job most, from its profiler traces."""
    from autotune.diagnose.terminal import show_analysis
    from autotune.diagnose.traced import analysis_of, read_for
    from autotune.output import page_at

    page = page_at(html, inputs=read_for(traces), force=force)
    analysis = analysis_of(traces)
    if page is not None:  # before much is printed: a reader who has seen enough must not cost the page
        from autotune.diagnose.page import diagnosis_page

        page.write(diagnosis_page(analysis, " ".join(map(str, traces))))
    show_analysis(analysis)
    if page is not None:
        print(f"page: {page.path}")
    return Answer(document=analysis)
