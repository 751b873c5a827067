"""`moe-autotune diagnose`: shows the partition of every step, the walls and what to try next, from the traces of one
job. `--explain FIX` explains one fix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer, Force, PageFile

if TYPE_CHECKING:
    from analyzers.lanes import Kept

FixName = Annotated[str | None, Parameter(name="--explain", help="Explain one fix by its name; no trace needed.")]
RangeName = Annotated[
    str | None,
    Parameter(name="--range", help="Analyze only ranges of this name; they count as steps if none are inside."),
]
MarkerName = Annotated[
    str | None, Parameter(name="--step-marker", help="Ranges of this name, numbered or not, mark the steps.")
]
Since = Annotated[
    str | None,
    Parameter(name="--from", help="Start of the window: seconds after the first event, or 350ms, 40us."),
]
Until = Annotated[str | None, Parameter(name="--to", help="End of the window, in the same form.")]
TracedRecipe = Annotated[
    str | None, Parameter(name="--recipe", help="The recipe that was traced, if it is not in the trace's folder.")
]


def diagnose(
    *traces: Annotated[
        Path, Parameter(help="Trace files of one job, a folder of them, or a trial of a study as STUDY/NUMBER.")
    ],
    range_name: RangeName = None,
    step_marker: MarkerName = None,
    since: Since = None,
    until: Until = None,
    recipe: TracedRecipe = None,
    explain: FixName = None,
    html: PageFile = None,
    force: Force = False,
) -> Answer:
    """Name the wall that costs a training job most, from its profiler traces, and what to try next."""
    if explain is not None:
        return _explained(explain)
    from autotune.diagnose.document import diagnosed
    from autotune.diagnose.next_steps import next_steps
    from autotune.diagnose.stretch import stretch_of
    from autotune.diagnose.terminal import show_analysis
    from autotune.diagnose.traced import analysis_of, input_files, situation_of_traces
    from autotune.looks.working import counting
    from autotune.output import page_at

    page = page_at(html, inputs=input_files(traces), force=force)
    kept: Kept | None = None if page is None else {}
    stretch = stretch_of(range_name=range_name, step_marker=step_marker, since=since, until=until)
    with counting("reading traces") as progress:
        analysis = analysis_of(traces, stretch, progress, kept)
    steps = next_steps(analysis, situation_of_traces(traces, analysis, recipe))
    if page is not None:  # before printing: a reader that closes the pipe early must not prevent the page
        from autotune.diagnose.page import diagnosis_page

        page.write(diagnosis_page(analysis, " ".join(map(str, traces)), steps, kept))
    show_analysis(analysis, steps)
    if page is not None:
        print(f"page: {page.path}")
    return Answer(document=diagnosed(analysis, steps))


def _explained(name: str) -> Answer:
    """Prints the page of one fix. Raises BadInputError with the nearest names for an unknown one."""
    from autotune.diagnose.document import FixDocument, FixPage
    from autotune.looks.fix_pages import plain_paragraphs
    from autotune.looks.wrapping import plain_console, say
    from policies.advice.advice import ADVISED
    from trainer.errors import BadInputError, Problem
    from trainer.recipe.source import near

    if name not in ADVISED:
        names = near(name, ADVISED)
        hint = f"did you mean {', '.join(names)}?" if names else f"one of {', '.join(ADVISED)}"
        raise BadInputError(Problem(where="--explain", what=f"there is no fix {name!r}", hint=hint))
    console, paragraphs = plain_console(), plain_paragraphs(ADVISED[name].page)
    for paragraph in paragraphs:
        say(console, paragraph)
        console.print()
    page = FixPage(name=name, title=ADVISED[name].title, page=paragraphs)
    return Answer(document=FixDocument(schema=1, fix=page))
