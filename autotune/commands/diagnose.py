"""`moe-autotune diagnose`: traces of one job in, the partition of every step and the walls out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer


def diagnose(
    *traces: Annotated[Path, Parameter(help="Trace files of one job, or a folder of them.")],
) -> Answer:
    """Name the wall that costs a training job most, from its profiler traces."""
    from analyzers import analyze
    from autotune.show import show_analysis
    from trainer.errors import BadInputError, Problem

    if not traces:
        raise BadInputError(
            Problem(where="diagnose", what="no trace is named", hint="name trace files or their folder")
        )
    analysis = analyze(traces)
    show_analysis(analysis)
    return Answer(document=analysis)
