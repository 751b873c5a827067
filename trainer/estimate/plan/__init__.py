"""Every layout and setting a cluster could have, which are legal and fit, and which are fastest by estimate.

In a notebook `best_layouts` is their table.
"""

from trainer.estimate.plan.table import best_layouts

__all__ = ["best_layouts"]
