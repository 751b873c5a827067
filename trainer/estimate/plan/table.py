"""The best layouts of a recipe as a table for notebooks: `trainer.estimate.plan.best_layouts(recipe, top)`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.estimate.plan.choices import Choice, choices
from trainer.estimate.plan.search import search
from trainer.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from pandas import DataFrame

SIZES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


def best_layouts(recipe: Recipe | str | Path, top: int = 10) -> DataFrame:
    """Returns the `top` legal layouts with their best settings, fastest first, as `moe-autotune plan` ranks them.

    The result is a pandas DataFrame with a row for each. Seconds are of a step, GiB (2**30 bytes) of the hottest rank;
    `fits` is by the upper bound; `<part>_s` are the parts of the step and add up to it, `memory_<part>_gib` those of
    the peak.

    Args: recipe: a Recipe, a recipe file, or the name of a packaged example. top: how many, at least 1.

    Raises: BadInputError: the recipe cannot be read. ValueError: top is less than 1.
    """
    from pandas import DataFrame

    if top < 1:
        raise ValueError(f"top is {top}: at least 1 layout must be asked for")
    base = recipe if isinstance(recipe, Recipe) else load_recipe(str(recipe))
    return DataFrame([_row(base, place, choice) for place, choice in enumerate(choices(search(base), top), 1)])


def _row(base: Recipe, place: int, choice: Choice) -> dict[str, Any]:
    return {
        "place": place,
        **{size: getattr(choice.layout, size) for size in SIZES},
        "micro_batch_size": choice.recipe.training.micro_batch_size,
        "tokens_per_s_per_gpu": choice.tokens_per_s_per_gpu,
        "model_tflops_per_gpu": choice.model_tflops_per_gpu,
        "step_s": choice.step_s,
        "step_spread": choice.spread,
        "fits": choice.fits,
        "peak_gib": choice.peak_gib,
        "needs_gib": choice.needs_gib,
        "limit_gib": base.memory_limit_gib,
        **choice.time_by_part,
        **{f"memory_{part}_gib": gib for part, gib in choice.memory_by_part.items()},
        "changes": {knob: to for knob, (_, to) in base.diff(choice.recipe).items()},
        "because": choice.because,
    }
