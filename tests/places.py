"""Where tests find the repository, and the facts and traces that may lie beside it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"  # not part of the repository: tests that read it skip without
FACTS = SHARED / "facts"
TRACES = SHARED / "traces"
