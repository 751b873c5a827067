"""Measures the CPU seconds of a test run: of the whole tree of processes that a command starts, and of each test file.

    python -m benchmarks.test_cost                          # make test
    python -m benchmarks.test_cost --tests 20 -- make test-full
    python -m benchmarks.test_cost -- python -m pytest tests/policies

The seconds are user + system time. Processes whose parent ended before them are adopted (PR_SET_CHILD_SUBREAPER) and
waited for as they end, so that services count as well; what still runs when the command has ended is ended first. A
process whose parent ignores SIGCHLD is not counted: the kernel forgets its times. No process of the suite does that.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import psutil

from benchmarks import cpu_by_test

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
GRACE_S = 10.0  # seconds between SIGTERM and SIGKILL for processes that the command left running


@dataclass(frozen=True, kw_only=True)
class Cost:
    """CPU seconds of one command and of the tests in it."""

    exit_code: int
    wall_s: float
    cpu_s: float
    by_test: Counter[str]  # CPU seconds by node id, of the worker and of the children it waited for

    def by_file(self) -> Counter[str]:
        """Returns the CPU seconds by test file."""
        files: Counter[str] = Counter()
        for test, cpu_s in self.by_test.items():
            files[test.partition("::")[0]] += cpu_s
        return files


def measure(command: Sequence[str], *, cwd: Path | None = None) -> Cost:
    """Runs the command to its end and returns the cost of its process tree."""
    _adopt_orphans()
    before_s, start_s = _children_cpu_s(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        exit_code = _run(command, cwd=cwd, env=_environment(folder))
        wall_s = time.monotonic() - start_s
        _end_the_rest()
        by_test: Counter[str] = Counter()
        for file in Path(folder).glob("*.jsonl"):
            by_test.update(dict(json.loads(line) for line in file.read_text().splitlines()))
    return Cost(exit_code=exit_code, wall_s=wall_s, cpu_s=_children_cpu_s() - before_s, by_test=by_test)


def _adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _run(command: Sequence[str], *, cwd: Path | None, env: dict[str, str]) -> int:
    """Runs the command and returns its exit code.

    Reaps adopted processes, as init would: a test that waits for its daemon's end would otherwise wait for a zombie.
    """
    process = subprocess.Popen(command, cwd=cwd, env=env)
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode


def _children_cpu_s() -> float:
    usage = getrusage(RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _environment(folder: str) -> dict[str, str]:
    """Returns an environment in which every pytest of the tree loads the plugin that records the CPU seconds of each
    test."""
    shutil.copy(cpu_by_test.__file__, folder)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), folder]))
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p cpu_by_test".strip()
    return {**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": options, cpu_by_test.FOLDER: folder}


def _end_the_rest() -> None:
    """Ends the descendants that outlived the command and waits for them, generation by generation."""
    while rest := psutil.Process().children(recursive=True):
        for process in rest:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(rest, timeout=GRACE_S)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, prints its cost and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=0, help="also the dearest tests, this many")
    parser.add_argument("--in", dest="folder", type=Path, help="folder to run in, such as a checkout to compare with")
    parser.add_argument("command", nargs="*", default=["make", "test"])
    asked = parser.parse_args(argv)
    cost = measure(asked.command, cwd=asked.folder)
    for rows in (cost.by_file().most_common(), cost.by_test.most_common(asked.tests)):
        for name, cpu_s in rows:
            print(f"{cpu_s:9.2f}  {name}")
    print(f"{cost.cpu_s:9.1f} CPU seconds, of these {sum(cost.by_test.values()):.1f} in tests; {cost.wall_s:.0f} s")
    return cost.exit_code


if __name__ == "__main__":
    sys.exit(main())
