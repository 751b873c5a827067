"""Runs the tests of what Megatron-Core does on the other releases that are tested, beside the installed one.

    python -m tests.releases [VERSION …] [-- PYTEST'S ARGUMENTS]

The wheel of each release, made for Python 3.12, is unpacked into build/releases/VERSION, ahead of the installed one on
PYTHONPATH. On Python 3.11 a sitecustomize adds `typing.override`; compiled parts (the index of data sets) are not used.
Wheels from 0.17 on have Megatron-LM's parser as well, which the exports are held against.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.exports.checkout import VARIABLE as MEGATRON_LM
from trainer.launchers.extensions import VARIABLE as EXTENSIONS
from trainer.releases import tested_cores

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "build" / "releases"
WHEELS_FOR = ("--python-version", "3.12", "--platform", f"manylinux_2_28_{os.uname().machine}")
# besides the files with tests marked `megatron`: what reads the installed release
ALSO = ("tests/trainer/recipe/test_knob_table.py", "tests/benchmarks/test_exports_of_megatron_lm.py")
LEFT_OUT = "not (slurm or trainers or browser or installs or thorough)"
OVERRIDE = """import typing

import typing_extensions

if not hasattr(typing, "override"):
    typing.override = typing_extensions.override
"""


def unpacked(release: str) -> Path:
    """Returns the folder of a release of Megatron-Core, downloaded and unpacked if it is not there."""
    folder = BUILT / release
    if (folder / "sitecustomize.py").is_file():
        return folder
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *WHEELS_FOR]
    subprocess.run([*download, "--dest", str(BUILT / "wheels"), f"megatron-core=={release}"], check=True)
    (wheel,) = (BUILT / "wheels").glob(f"megatron_core-{release}-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    (folder / "sitecustomize.py").write_text(OVERRIDE)  # last: the folder is whole
    return folder


def files_with_megatron() -> list[str]:
    marked = (path for path in (ROOT / "tests").rglob("test_*.py") if "mark.megatron" in path.read_text())
    return sorted({*(str(path.relative_to(ROOT)) for path in marked), *ALSO})


def tested(release: str, more: list[str]) -> int:
    """Runs the tests on a release; returns pytest's exit code."""
    folder = unpacked(release)
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        MEGATRON_LM: str(folder),
        EXTENSIONS: str(BUILT / f"extensions-{release}"),  # compiled once, not in every study of a test
    }
    pytest = [sys.executable, "-m", "pytest", "-m", LEFT_OUT, *more, *files_with_megatron()]
    print(f"megatron-core {release}", flush=True)
    return subprocess.run(pytest, env=environment, cwd=ROOT, check=False).returncode


def main(words: list[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    named, more = words[:at], words[at + 1 :]
    releases = named or [core for core in tested_cores() if core != version("megatron-core")]
    return max([tested(release, more) for release in reversed(releases)], default=0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
