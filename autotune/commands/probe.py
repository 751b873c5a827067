"""`moe-autotune probe`: micro-benchmarks of a recipe's cluster, beside what the tables expect."""

from __future__ import annotations

from autotune.commands.answer import Answer, RecipeName


def probe(recipe: RecipeName) -> Answer:
    """Measure a recipe's cluster in two minutes: kernels, host, links, overlap, memory, software."""
    from autotune.looks.wrapping import plain_console
    from autotune.probe.measure import probe_recipe
    from autotune.probe.terminal import show_probe
    from autotune.tuning.study import DEFAULT_SEED
    from trainer.recipe import load_recipe

    found = probe_recipe(load_recipe(str(recipe)), seed=DEFAULT_SEED)
    show_probe(plain_console(), found)
    return Answer(document=found)
