"""The program works on every interpreter that pyproject.toml allows, where one with its dependencies is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.autotune.outside import SMALL
from tests.places import ROOT
from tests.rows import filled

# folders of virtual environments, separated by colons; torch and Megatron-Core are not needed
PYTHONS = [
    Path(folder) / "bin/python" for folder in os.environ.get("MOE_AUTOTUNE_ENVIRONMENTS", "").split(":") if folder
]


@pytest.mark.thorough
@pytest.mark.skipif(not PYTHONS, reason="no other environments (MOE_AUTOTUNE_ENVIRONMENTS)")
def test_commands_work_on_other_interpreters(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SMALL)
    lines = ("--help", "check base.yaml", "plan base.yaml", "run base.yaml --budget 1 --study s", "diagnose s/0")
    for number, python in enumerate(filled(PYTHONS)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "base.yaml").write_text(SMALL)
        for line in lines:
            done = subprocess.run(
                [python, "-m", "autotune.cli", *line.split()],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{python} {line}: {done.stderr}"
