"""The wheel, installed as users install it: not editable, without constraints, alone on a login node or with torch and
Megatron-Core on the newest Python."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.autotune.outside import SMALL
from tests.places import ROOT

pytestmark = pytest.mark.installs

SCRIPT = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 " + (
    "--seq-length 64 --micro-batch-size 1 --global-batch-size 8 --num-experts 8 --vocab-size 1024\n"
)
LIGHT = (
    "--help",
    "check base.yaml",
    "plan base.yaml",
    "estimate base.yaml",
    "run base.yaml --budget 1 --study s",  # on a simulated cluster
    "diagnose s/0",
    "report s",
    "export s --to yaml",
    "import train.sh --gpu h100 --nodes 1 -o imported.yaml --force",
    "doctor",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel of this tree, built from a copy: a build leaves its own folders behind."""
    folder = tmp_path_factory.mktemp("wheel")
    packed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, packed.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "tree" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, folder / "tree"]
    subprocess.run(command, check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def place() -> Iterator[Path]:
    """Yields a folder that is gone after the test: an environment takes up to 6 GB."""
    with TemporaryDirectory(prefix="moe-installed-") as folder:
        yield Path(folder)


def installed(python: Path, requirement: str, place: Path) -> Path:
    """Returns the program of a new environment in which pip installed the requirement alone."""
    subprocess.run([python, "-m", "venv", place / "venv"], check=True)
    subprocess.run([place / "venv/bin/pip", "install", "--quiet", requirement], check=True)
    return place / "venv/bin/moe-autotune"


def run(program: Path, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [program, *shlex.split(line)]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_login_node_needs_neither_torch_nor_megatron(wheel: Path, place: Path) -> None:
    program = installed(Path(sys.executable), str(wheel), place)
    listed = run(place / "venv/bin/pip", "list", place).stdout
    assert not re.search(r"^(torch|megatron-core|triton) ", listed, re.MULTILINE)
    (place / "base.yaml").write_text(SMALL)
    (place / "train.sh").write_text(SCRIPT)
    for line in LIGHT:
        done = run(program, line, place)
        assert done.returncode == 0, f"{line}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    for line in ("run cpu-moe-slow --study t", "estimate base.yaml --dry-run", "probe cpu-moe-slow"):
        done = run(program, line, place)
        assert done.returncode == 3, f"{line}: {done.stdout} {done.stderr}"
        assert "pip install 'moe-autotune[megatron]'" in done.stderr
    assert not (place / "t").exists()


def newer_pythons() -> list[Path]:
    """Returns the interpreters of Python 3.12 and 3.13 on this machine: on the path, or of pyenv."""
    named = [Path(found) for name in ("python3.12", "python3.13") if (found := shutil.which(name))]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [*(path for path in named if ".pyenv/shims" not in str(path)), *sorted(pyenv.glob("3.1[23].*/bin/python"))]


def test_todays_stack_trains(wheel: Path, place: Path) -> None:
    """The newest Megatron-Core and torch that PyPI has for the newest Python here: 5 GB with CUDA."""
    if not (pythons := newer_pythons()):
        pytest.skip("no Python 3.12 or 3.13")
    program = installed(pythons[0], f"{wheel}[megatron]", place)
    done = run(program, "run cpu-moe-slow --budget 2 --study s", place)
    assert done.returncode == 0, f"{done.stdout[-3000:]} {done.stderr[-3000:]}"
    assert "accepted: the first recipe that runs" in done.stdout + done.stderr
