"""Paths of the repository, its tables of published figures, and the real traces that may be next to it."""

from __future__ import annotations

from benchmarks.places import DATA, ROOT, TRACES

FACTS = DATA
TRAINER_LOGS = ROOT.parent / "shared" / "facts" / "trainer_logs"
CASES = ROOT.parent / "shared" / "cases"  # recipes, traces and logs of public reports
LIGHT = ROOT / "tests/trainer/launchers/light"  # ahead in PYTHONPATH: torchrun's agent is a stand-in without torch
WITHOUT_SHARED = "without ../shared"  # why tests of real traces skip

__all__ = ["CASES", "FACTS", "LIGHT", "ROOT", "TRACES", "TRAINER_LOGS", "WITHOUT_SHARED"]
