"""`status` and `watch` in another shell than the tuner's: running, ended, killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import msgspec
import pytest

from autotune.cli import main
from autotune.status.watching import follow
from autotune.tuning.study import held
from tests.autotune.outside import LONG, started
from tests.autotune.report.drawn_study import events, write_study


@pytest.fixture(autouse=True)
def _recipe(empty_folder: Path) -> None:
    (empty_folder / "base.yaml").write_text(LONG)


def test_the_status_of_a_study_is_right_while_it_runs_and_after_a_kill(capfd: pytest.CaptureFixture[str]) -> None:
    run = started("run", "base.yaml", "--budget", "5000", "--study", "s")
    assert run.stdout is not None
    for line in run.stdout:
        if "burst 1:" in line:
            break
    assert main(["status", "s", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["state"] == "running"
    os.kill(run.pid, signal.SIGSTOP)  # so that its journal stays as it is
    assert main(["status", "s", "--json"]) == 0
    running = json.loads(capfd.readouterr().out)
    assert held(Path("s"))
    assert running["state"] == "suspended"
    assert running["process"] == run.pid
    assert running["budget"] == 5000
    run.kill()
    run.communicate()
    assert not held(Path("s"))
    assert main(["status", "s"]) == 0
    written = capfd.readouterr().out
    assert "not running: killed" in written
    assert "moe-autotune run base.yaml --study s --resume --budget 5000" in written
    assert main(["watch", "s"]) == 0
    watched = capfd.readouterr().out
    assert "[fit] trial 0: base" in watched
    assert "not running" in watched


def test_watching_shows_the_log_as_it_grows_until_the_study_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = events()
    folder = write_study(tmp_path / "s", written[:12])
    monkeypatch.setattr("autotune.status.watching.held", lambda _: True)
    left = [written[12:20], [], written[20:]]

    def wait(seconds: float) -> None:
        with (folder / "journal.jsonl").open("ab") as journal:
            for event in left.pop(0):
                journal.write(msgspec.json.encode(event) + b"\n")

    status = follow(folder, wait=wait)
    assert left == []
    assert status.status == "converged"
    said = capsys.readouterr().out
    for line in (
        "study cpu-moe started",
        "[fit] trial 0: base",
        "[retune] trial 9: micro_batch_down",
        "converged: no fix is left",
    ):
        assert said.count(line) == 1


def test_an_ended_study_says_how_it_ended_and_what_it_cost(ended: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(ended / "studies/sim-1"), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == 1
    assert (document["state"], document["status"]) == ("ended", "budget")
    assert document["bursts"] == 3
    assert document["gpu_hours"] > 0
    assert document["simulated"] is True


def test_a_folder_that_is_no_study_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "watch"):
        assert main([command, "nowhere"]) == 2
        assert "not a study" in capsys.readouterr().err
