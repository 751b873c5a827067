"""Warns of throughput above the GPU's peak, which shows that steps did less work than is counted for them."""

from __future__ import annotations

from trainer.recipe import Recipe

_WRONG = (
    "the figure is wrong: some of the work was not done, or is counted that is not there. Context parallelism that is "
    "silently off looks like that (Megatron-Bridge#2667): compare the loss with that of another layout"
)


def above_peak(recipe: Recipe, *, counted: float | None = None, reported: float | None = None) -> list[str]:
    """Returns a warning for each throughput above the dense peak of the recipe's precision, TFLOP/s per GPU: `counted`
    from the step time, `reported` by the trainer. [] if the peak is not known."""
    peak = recipe.peak_tflops
    if peak is None:
        return []
    figures = (("the measured step time means", counted), ("the trainer reports", reported))
    return [
        f"{who} {figure:,.0f} TFLOP/s per GPU, and the dense peak of {recipe.cluster.gpu_name} in "
        f"{recipe.training.precision} is {peak:,.0f}: {_WRONG}"
        for who, figure in figures
        if figure is not None and figure > peak
    ]
