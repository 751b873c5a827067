"""`moe-autotune estimate`: predicts memory and step time of a recipe, by part, without a burst."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from autotune.commands.answer import NO_RECIPE, Answer, Force, MachineName, PageFile, RecipeName, whole


def estimate(
    recipe: RecipeName,
    *,
    imbalance: Annotated[
        float | None,
        Parameter(
            validator=Number(gte=1, lte=10_000),
            help="Tokens of the hottest expert rank over the mean, in time and in the upper bound of memory.",
        ),
    ] = None,
    software: Annotated[
        str | None, Parameter(help="A software release by its NeMo number, such as 26.04; default the latest known.")
    ] = None,
    machine: MachineName = None,
    html: PageFile = None,
    force: Force = False,
    dry_run: Annotated[
        bool, Parameter(negative=(), help="Build and step one rank with Megatron-Core itself, without a GPU.")
    ] = False,
    pp_rank: Annotated[
        int | None,
        Parameter(
            converter=whole, validator=Number(gte=0), help="With --dry-run: the pipeline rank; default the hottest."
        ),
    ] = None,
) -> Answer:
    """Predict a recipe's memory and step time by part, without running it."""
    from autotune.check.legal import refuse_illegal
    from autotune.estimate.document import estimated, show_estimate
    from autotune.estimate.dry_run import dry_run_part
    from autotune.estimate.machine import chosen_machine
    from autotune.output import page_at
    from trainer.recipe import load_recipe
    from trainer.recipe.source import source_file

    page = page_at(html, inputs=[source_file(str(recipe))], force=force)
    given = load_recipe(str(recipe))
    chosen = chosen_machine(machine, gpu=given.cluster.gpu_name)
    release = release_of(software)
    # runs before the rules are checked, since Megatron-Core's answer is the result
    tried = dry_run_part(given, requested=dry_run, pp_rank=pp_rank)
    if any(found.refused for found in tried.values()):
        return Answer(code=NO_RECIPE, document={"schema": 1, **tried})
    refuse_illegal(given, where=str(recipe))
    found = estimated(given, imbalance=imbalance, release=release, machine=chosen)
    show_estimate(found)
    if page is not None:
        from autotune.estimate.page import estimate_page

        page.write(estimate_page(found))
        print(f"page: {page.path}")
    return Answer(document={**found.document, **tried})


def release_of(named: str | None) -> str | None:
    """Returns the name of the release in software.csv; None if none was named. Raises BadInputError for an unknown
    one."""
    from trainer.errors import BadInputError, Problem
    from trainer.measured.software import release_named, releases

    try:
        return None if named is None else release_named(named)
    except KeyError:
        problem = Problem(
            where="--software", what=f"no release {named!r} is known", hint=f"there are {', '.join(releases())}"
        )
        raise BadInputError(problem) from None
