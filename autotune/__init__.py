"""The user-facing layer: the command line, the tuning loop, the judge, the journal, the report and the exports.

`load_study` reads a study in a notebook; its module is imported on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.notebook import load_study

__all__ = ["load_study"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autotune.notebook import load_study

    return load_study
