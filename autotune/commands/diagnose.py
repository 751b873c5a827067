"""`moe-autotune diagnose`: traces of one job in, the partition of every step and the walls out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer, PageFile


def diagnose(
    *traces: Annotated[
        Path, Parameter(help="Trace files of one job, a folder of them, or a trial of a study as STUDY/NUMBER.")
    ],
    html: PageFile = None,
) -> Answer:
    """Name the wall that costs a training job most, from its profiler traces."""
    from autotune.diagnose.terminal import show_analysis
    from autotune.diagnose.traced import analysis_of

    analysis = analysis_of(traces)
    if html is not None:
        from autotune.diagnose.page import diagnosis_page
        from autotune.looks.write import save_page

        save_page(html, diagnosis_page(analysis, " ".join(map(str, traces))))
    show_analysis(analysis)
    if html is not None:
        print(f"page: {html}")
    return Answer(document=analysis)
