"""Paths of the repository, its tables of published figures, and the real traces that may be next to it."""

from __future__ import annotations

from benchmarks.places import DATA, ROOT, TRACES

FACTS = DATA
TRAINER_LOGS = ROOT.parent / "shared" / "facts" / "trainer_logs"
WITHOUT_SHARED = "without ../shared"  # why tests of real traces skip

__all__ = ["FACTS", "ROOT", "TRACES", "TRAINER_LOGS", "WITHOUT_SHARED"]
