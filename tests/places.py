"""Where tests find the repository, its tables of published figures, and the real traces that may lie beside it."""

from __future__ import annotations

from benchmarks.places import DATA, ROOT, TRACES

FACTS = DATA

__all__ = ["FACTS", "ROOT", "TRACES"]
