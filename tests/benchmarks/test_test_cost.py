"""The meter of CPU seconds counts every process that a run of tests starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT

BURNT_S = 0.5
# the test ends while its service, whose parent ended before it, still runs
TEST = f"""
import os, time

def test_with_a_service_left_running():
    done, said = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            while time.process_time() < {BURNT_S}:
                pass
            os.write(said, b".")
            time.sleep(3600)
        os._exit(0)
    os.wait()
    assert os.read(done, 1)


def test_with_a_service_that_ends():
    said, done = os.pipe()
    if os.fork() == 0:
        if (service := os.fork()) == 0:
            os._exit(0)
        os.write(done, str(service).encode())
        os._exit(0)
    os.wait()
    service = int(os.read(said, 20))
    while os.path.exists(f"/proc/{{service}}"):  # adopted and reaped
        time.sleep(0.01)
"""


def test_a_service_that_outlives_its_parent_and_the_command_is_counted_and_ended(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_one.py"]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.test_cost", "--in", str(tmp_path), "--", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    *_, by_file, total = run.stdout.splitlines()
    assert by_file.split()[1] == "test_one.py"
    assert float(total.split()[0]) >= float(by_file.split()[0]) + BURNT_S  # no test waits for the service
