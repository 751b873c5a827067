"""Reads traces: from a profiler's file to the partition of every step and the wall that costs most.

Nothing here runs training or needs torch: a trace can be diagnosed on a laptop. `analyze` is the entry point; it is
imported on first use, so that importing this package stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analyzers.errors import TraceError

if TYPE_CHECKING:
    from analyzers.analysis import analyze
    from analyzers.diagnosis import Analysis, Diagnosis, Partition, Wall, WallFinding

__all__ = ["Analysis", "Diagnosis", "Partition", "TraceError", "Wall", "WallFinding", "analyze"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("analyzers.analysis" if name == "analyze" else "analyzers.diagnosis"), name)
