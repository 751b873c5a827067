"""`make test-full` collects every file with tests that `make test` leaves to it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.places import ROOT


@pytest.mark.skipif(shutil.which("make") is None, reason="without make")
def test_make_test_full_collects_every_file_of_a_test_that_waits_for_it(left_out_of: set[Path]) -> None:
    done = subprocess.run(["make", "--dry-run", "test-full"], cwd=ROOT, capture_output=True, text=True, check=True)
    collected = {ROOT / word for word in done.stdout.split() if word.endswith(".py")}
    assert ROOT / "tests/trainer/engines/test_megatron_engine.py" in collected
    assert left_out_of - collected == set()
