"""`moe-autotune probe`: runs micro-benchmarks on a recipe's cluster and compares them with the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from autotune.commands.answer import Answer, Force, RecipeName


def probe(
    recipe: RecipeName,
    *,
    machine: Annotated[
        Path | None, Parameter(help="Also write a machine file of the cluster, for estimates and simulations.")
    ] = None,
    force: Force = False,
) -> Answer:
    """Measure a recipe's cluster in at most two minutes: kernels, host, links, overlap, memory, software."""
    from autotune.looks.working import working
    from autotune.looks.wrapping import plain_console
    from autotune.output import text_at
    from autotune.probe.measure import probe_recipe
    from autotune.probe.terminal import show_probe
    from autotune.tuning.study import DEFAULT_SEED
    from trainer.extras import refuse_without_megatron, trains_here
    from trainer.recipe import load_recipe
    from trainer.recipe.source import source_file

    target = text_at(machine, inputs=[source_file(str(recipe))], force=force)
    given = load_recipe(str(recipe))
    if trains_here(given):
        refuse_without_megatron("a probe of this machine")
    with working("probing the cluster"):
        found = probe_recipe(given, seed=DEFAULT_SEED)
    show_probe(plain_console(), found.document)
    if target is not None:
        from autotune.probe.twin import twin_of_probe
        from autotune.twin.written import twin_text

        versions = found.document.environment
        target.write(twin_text(twin_of_probe(given, found.rows, name=target.path.stem, versions=versions)))
        print(f"machine file: {target.path}")
    return Answer(document=found.document)
