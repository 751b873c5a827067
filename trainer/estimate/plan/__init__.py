"""Every layout and setting a cluster could have, which are legal and fit, and which are fastest by estimate.

In a notebook `best_layouts` is their table; it is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.estimate.plan.table import best_layouts

__all__ = ["best_layouts"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainer.estimate.plan.table import best_layouts

    return best_layouts
