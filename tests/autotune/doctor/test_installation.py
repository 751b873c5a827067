"""Another package of the same name earlier on the path is detected before any of its code runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.doctor.installation import PACKAGES, shadowed
from tests.places import ROOT


def test_one_installation_is_not_reported() -> None:
    assert shadowed() is None


def started_with(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune.cli", "doctor"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "autotune"])
def test_a_shadowing_package_is_named_with_its_place(package: str, tmp_path: Path) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise SystemExit('the wrong one was imported')")
    run = started_with(tmp_path)
    assert run.returncode == 3
    assert f"another {package!r} comes first: {tmp_path / package}\n" in run.stderr
    assert "→ start it from a folder without a package of that name" in run.stderr


def test_a_script_of_the_same_name_shadows_as_well(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("raise SystemExit('the wrong one was imported')")
    run = started_with(tmp_path)
    assert run.returncode == 3
    assert f"another 'trainer' comes first: {tmp_path / 'trainer.py'}\n" in run.stderr
