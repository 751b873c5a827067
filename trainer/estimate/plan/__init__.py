"""Plans a recipe: every layout and setting that a cluster allows, which of them are legal and fit, and the fastest by
estimate. In a notebook `best_layouts` returns them as a table."""

from trainer.estimate.plan.table import best_layouts

__all__ = ["best_layouts"]
