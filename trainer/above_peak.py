"""Warns of throughput above the peak of the GPU: a step so short did not do the work that is counted for it."""

from __future__ import annotations

from trainer.recipe import Recipe

_WRONG = (
    "the figure is wrong: some of the work was not done, or is counted that is not there. Context parallelism that is "
    "silently off looks like that (Megatron-Bridge#2667): compare the loss with that of another layout"
)


def above_peak(recipe: Recipe, *, counted: float | None = None, reported: float | None = None) -> list[str]:
    """Returns a warning for each throughput above the dense peak of the recipe's precision, TFLOP/s per GPU: `counted`
    from the step time, `reported` by the trainer. [] where the peak is not known."""
    peak = recipe.peak_tflops
    if peak is None:
        return []
    said = (("the measured step time means", counted), ("the trainer reports", reported))
    return [
        f"{who} {figure:,.0f} TFLOP/s per GPU, and the dense peak of {recipe.cluster.gpu_name} in "
        f"{recipe.training.precision} is {peak:,.0f}: {_WRONG}"
        for who, figure in said
        if figure is not None and figure > peak
    ]
