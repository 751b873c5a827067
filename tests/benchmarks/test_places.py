"""A checkout is complete: every command of docs/benchmarks.md and its data are there, or the command says which file is
missing."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.places import DATA
from tests.conftest import HANG_S
from tests.places import ROOT

TABLES = ROOT / "docs" / "benchmarks.md"
COMMANDS = sorted(set(re.findall(r"python -m (benchmarks\.\w+)", TABLES.read_text(encoding="utf-8"))))
READ_TABLES = ("check_speed", "estimate_accuracy memory", "estimate_accuracy time", "simulated_memory")


@pytest.mark.parametrize("module", COMMANDS)
def test_a_command_of_the_tables_is_there_and_says_what_it_does(module: str) -> None:
    assert find_spec(module)
    assert f"python -m {module}" in (importlib.import_module(module).__doc__ or "")


def run_of(words: list[str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S
    )


@pytest.mark.parametrize("words", [f"{words} --facts nowhere" for words in READ_TABLES] + ["trace_speed readers"])
def test_a_benchmark_without_its_data_says_so_in_a_line(words: str, tmp_path: Path) -> None:
    arguments = [f"benchmarks.{words.split()[0]}", *words.split()[1:]]
    said = run_of([*arguments, *(["--traces", str(tmp_path)] if "trace" in words else [])])
    assert said.returncode == 2
    assert len(said.stderr.splitlines()) == 1
    assert " is not there: " in said.stderr


def test_a_clone_alone_has_its_tables(tmp_path: Path) -> None:
    """Only files that git tracks are in a clone."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    clone = tmp_path / "clone"
    for name in filter(None, tracked.stdout.decode().split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    done = run_of(["benchmarks.flops"], clone)
    assert done.returncode == 0, done.stderr
    assert "deepseek_v3" in done.stdout


def test_the_tables_are_described_next_to_them() -> None:
    described = (DATA / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w.]+)`", described, re.MULTILINE))
    assert named == {path.name for path in DATA.iterdir() if path.name != "README.md"}
