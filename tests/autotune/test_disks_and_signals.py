"""Checks events from outside while the program runs: full and read-only disks, signals, readers that leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.tuning.journal import read_study
from tests.autotune.outside import LONG, SIMULATED, mounted, started, without_a_reader, without_a_reader_of_stderr
from tests.draws import few
from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def recipe_text() -> str:
    return LONG


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yields a disk of 256 KiB."""
    with mounted(tmp_path / "small", "256k") as folder:
        yield folder


def test_a_full_disk_ends_with_3_and_the_study_goes_on_once_there_is_room(
    recipe: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(SIMULATED)
    words = ["run", str(recipe), "--budget", "30", "--study", str(small_disk / "s")]
    assert main(words) == 3
    said = capsys.readouterr().err
    assert "no space left on device" in said
    assert "→ free some space" in said
    finished = len(read_study(small_disk / "s").finished)
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert main([*words[:3], str(finished + 1), *words[4:], "--resume"]) == 0
    assert len(read_study(small_disk / "s").finished) == finished + 1


@pytest.mark.parametrize("place", ["/proc/study", "/sys/study"])
def test_a_folder_that_cannot_be_written_ends_with_2(
    place: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(recipe), "--study", place]) == 2
    said = capsys.readouterr().err
    assert place in said
    assert "→ " in said


def test_a_read_only_file_system_ends_with_2(
    recipe: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert main(["run", str(recipe), "--study", str(small_disk / "s")]) == 2
    assert "read-only" in capsys.readouterr().err


@pytest.mark.parametrize("number", few([signal.SIGTERM, signal.SIGINT, signal.SIGHUP], 1, later=pytest.mark.faults))
def test_a_signal_ends_cleanly_with_130_and_says_how_to_go_on(number: signal.Signals, recipe: Path) -> None:
    notified = 'printf "%s" "$MOE_AUTOTUNE_STATUS $MOE_AUTOTUNE_EXIT_CODE $MOE_AUTOTUNE_SUMMARY" > notified'
    run = started("run", str(recipe), "--budget", "5000", "--study", "s", "--notify", notified)
    assert run.stdout is not None
    for line in run.stdout:
        if "burst 1:" in line:
            break
    run.send_signal(number)
    out, err = run.communicate()
    assert run.returncode == 130, err
    assert Path("notified").read_text().startswith("interrupted 130 sim: interrupted, trial ")
    assert f"moe-autotune run {recipe} --study s --resume" in out
    ended = read_study(Path("s")).ended
    assert ended is not None
    assert ended.status == "interrupted"
    assert Path("s/report.html").exists()


def test_a_reader_that_leaves_is_no_error() -> None:
    run = started("init")
    assert run.stdout is not None
    run.stdout.close()
    run.wait()
    assert run.returncode == 0


@pytest.mark.parametrize(
    "line", few(["check --rules", "plan base.yaml", "estimate cpu-moe"], 1, later=pytest.mark.faults)
)
@pytest.mark.usefixtures("recipe")
def test_a_reader_that_has_seen_enough_is_no_failure(line: str) -> None:
    assert without_a_reader(*line.split()) == (0, "")


def test_an_error_has_its_exit_code_and_document_when_nobody_reads_stderr() -> None:
    assert without_a_reader_of_stderr("check", "nowhere.yaml") == (2, "")
    code, document = without_a_reader_of_stderr("check", "nowhere.yaml", "--json")
    assert (code, json.loads(document)["error"]["code"]) == (2, 2)


def test_a_reader_of_watch_that_has_seen_enough_is_no_failure(ended: Path) -> None:
    assert without_a_reader("watch", str(ended / "studies/sim-1")) == (0, "")


@pytest.mark.usefixtures("recipe")
def test_a_study_goes_on_when_nobody_reads_its_log_any_more() -> None:
    assert without_a_reader("run", "base.yaml", "--budget", "1", "--study", "s") == (0, "")
    assert Path("s/report.html").is_file()


@pytest.mark.parametrize("words", [["check", "--rules", "--json"], ["check", "--rules"]])
def test_a_full_disk_ends_with_3_and_a_closed_stdout_with_0(words: list[str]) -> None:
    command = " ".join(["exec", sys.executable, "-m autotune.cli", *words])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    full = subprocess.run(["sh", "-c", f"{command} > /dev/full"], capture_output=True, text=True, env=environment)
    assert full.returncode == 3
    assert "no space left on device" in full.stderr
    assert "Traceback" not in full.stderr
    closed = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, env=environment)
    assert closed.returncode == 0
