"""`moe-autotune gap`: divides the time between a measured step and an attainable one by cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import Answer, Force, PageFile, whole

if TYPE_CHECKING:
    from autotune.output import Output
    from trainer.recipe import Recipe

RUN = "A log of Megatron-LM or Bridge, traces, a study, a trial as STUDY/NUMBER, or a recipe."
Run = Annotated[str | Path, Parameter(help=RUN)]
Count = Annotated[int | None, Parameter(converter=whole, validator=Number(gt=0))]


def gap(
    run: Run,
    *,
    against: Annotated[
        str | None,
        Parameter(help="published (the nearest run; the default), a row such as P0358, or another run of yours."),
    ] = None,
    against_trace: Annotated[Path | None, Parameter(help="Traces of that other run.")] = None,
    recipe: Annotated[
        str | None,
        Parameter(help="The recipe, launch script or configuration of the run, if the run does not name one."),
    ] = None,
    trace: Annotated[Path | None, Parameter(help="Traces of the same run: the gap is divided by their parts.")] = None,
    probe: Annotated[
        Path | None, Parameter(help="A probe of its cluster (moe-autotune probe --json): for runs without a trace.")
    ] = None,
    software: Annotated[
        str | None, Parameter(help="Your software release by its NeMo number, such as 26.04; default the reference's.")
    ] = None,
    gpu: Annotated[str | None, Parameter(help="GPU type, as in import, if the log or script does not say.")] = None,
    nodes: Annotated[Count, Parameter(help="Number of nodes; overrides the file.")] = None,
    gpus_per_node: Annotated[Count, Parameter(help="GPUs per node; overrides the file.")] = None,
    vocab_size: Annotated[Count, Parameter(help="Size of the vocabulary, if the file does not say.")] = None,
    output: Annotated[
        Path | None,
        Parameter(name=("--output", "-o"), help="Write your recipe with the settings that gain to this file."),
    ] = None,
    html: PageFile = None,
    force: Force = False,
) -> Answer:
    """Show where the time goes between your step and a published one: a waterfall, and what each cause would give."""
    from autotune.commands.estimate import release_of
    from autotune.gap.comparing import PUBLISHED, attainable, compared, first_choice
    from autotune.gap.document import document_of
    from autotune.gap.inputs import RunOptions, input_files, side_of
    from autotune.gap.terminal import show_gap
    from autotune.looks.working import counting, working
    from autotune.output import page_at, text_at
    from trainer.errors import refused

    named = str(run)
    read = input_files(named, recipe, trace, probe, against, against_trace)
    page, file = page_at(html, inputs=read, force=force), text_at(output, inputs=read, force=force)
    release = release_of(software)
    sizes: dict[str, Any] = {"gpu": gpu, "gpus_per_node": gpus_per_node, "vocab_size": vocab_size}
    more = {"--against": against, "--against-trace": against_trace, "--software": software}
    options = RunOptions(**sizes, nodes=nodes, recipe=recipe, trace=trace, probe=probe, more=more)
    with counting("reading traces") as progress:
        side = side_of(named, options, progress)
        other = None
        if against is not None and not _is_published(against):
            other = side_of(against, RunOptions(**sizes, trace=against_trace), progress)
        elif against_trace is not None:
            raise refused("--against-trace", "--against names no other run of yours", "add --against LOG")
    with working("comparing"):
        row = None if other or against == PUBLISHED else against
        found = compared(side, named=row, other=other, release=release, plan=first_choice)
    if found.waterfall is None:
        raise refused(named, "it holds no trace of a step", "name traces, a log, a study or a recipe")
    written = _written(attainable(found), file)
    document = document_of(found, software=release, file=written)
    if page is not None:
        from autotune.gap.page import gap_page

        page.write(gap_page(document))
    show_gap(document)
    if page is not None:
        print(f"page: {page.path}")
    return Answer(document=document)


def _is_published(named: str) -> bool:
    """Returns whether --against names published runs: `published`, or a row such as P0358."""
    from autotune.gap.comparing import PUBLISHED
    from trainer.estimate.gap.published import is_row

    return named == PUBLISHED or (is_row(named) and not Path(named).exists())


def _written(recipe: Recipe | None, file: Output | None) -> str | None:
    """Writes the recipe to the file of -o and returns its path; None without -o.

    Raises BadInputError if no setting gains time.
    """
    from trainer.errors import refused

    if file is None:
        return None
    if recipe is None:
        raise refused(str(file.path), "no setting is known that gains and leaves training as it is", "leave -o out")
    file.write(recipe.to_yaml())
    return str(file.path)
