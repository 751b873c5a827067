"""A study as the runs of an experiment tracker: the logged values, read back from MLflow."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from autotune.cli import main
from autotune.report import write_report
from autotune.tracking.runs import runs_of
from autotune.tuning.history import History
from tests.autotune.report.drawn_study import STEPS, events, write_study
from tests.conftest import HANG_S

needs_server = pytest.mark.skipif(
    find_spec("mlflow") is None or find_spec("flask") is None, reason="without MLflow's server (pip install mlflow)"
)
needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="without MLflow (pip install '.[mlflow]')")


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = write_study(tmp_path / "s")
    write_report(folder)
    return folder


def test_a_study_and_each_of_its_trials_are_runs() -> None:
    runs = runs_of(History(events()))
    assert runs.experiment == "cpu-moe"
    assert len(runs.trials) == 10
    assert runs.study.metrics["speedup"] == pytest.approx(1.83, abs=0.01)
    assert runs.study.metrics["best_trial"] == 7
    fast = runs.trials[3]
    assert fast.parameters == {"micro_batch_size": "4"}
    assert fast.metrics["step_ms"] == pytest.approx(1010, rel=0.01)
    assert fast.metrics["peak_gib"] == 0.95
    assert fast.metrics["communication_ms"] == pytest.approx(284, rel=0.01)
    assert len(fast.curves["loss"]) == 11
    assert fast.tags["verdict"] == "accepted"
    assert fast.tags["because"]


def test_a_trial_that_did_not_run_is_a_failed_run_without_figures() -> None:
    first = runs_of(History(events(STEPS[:1]))).trials[0]
    assert first.failed
    assert "step_ms" not in first.metrics
    assert first.curves == {}


def test_the_same_study_has_the_same_identity_after_more_trials() -> None:
    assert runs_of(History(events(STEPS[:3]))).identity == runs_of(History(events())).identity


@pytest.mark.skipif(find_spec("mlflow") is not None, reason="MLflow is installed")
def test_without_mlflow_the_extra_is_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "s", "--to", "mlflow"]) == 3
    assert "pip install 'moe-autotune[mlflow]'" in capsys.readouterr().err


@needs_mlflow
def test_a_tracking_folder_has_runs_metrics_and_artifacts_once(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "s", "--to", "mlflow", "--tracking", "runs"]) == 0
    assert "10 trials below it" in capsys.readouterr().out
    assert main(["export", "s", "--to", "mlflow", "--tracking", "runs"]) == 2
    assert "this study is there already" in capsys.readouterr().err
    assert main(["export", "s", "--to", "mlflow", "--tracking", "runs", "--force"]) == 0
    found = _runs("runs")
    assert len(found) == 11
    parent = next(run for run in found if "mlflow.parentRunId" not in run.data.tags)
    assert parent.data.metrics["speedup"] == pytest.approx(1.83, abs=0.01)
    assert sum(run.data.tags.get("mlflow.parentRunId") == parent.info.run_id for run in found) == 10
    assert {"report.html", "tuned_recipe.yaml"} <= {path.name for path in Path("runs").rglob("artifacts/*")}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Yields the address of an MLflow server, which is ended afterwards with its workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stores = ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--artifacts-destination", f"{tmp_path}/files"]
    words = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1", *stores]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, process_group=0)
    try:
        _wait(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + HANG_S
    while time.monotonic() < end and process.poll() is None:
        try:
            if urlopen(address, timeout=HANG_S).read() == b"OK":
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail("the server did not come up")


@pytest.mark.cold
@needs_server
def test_a_server_has_runs_metrics_and_files(study: Path, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "s", "--to", "mlflow", "--tracking", server]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("run ")
    assert said.out.count("\n") == 1
    run = said.out.split()[1]
    assert main(["export", "s", "--to", "mlflow", "--tracking", server]) == 2
    assert f"as run {run}" in capsys.readouterr().err
    found = {run.info.run_id: run for run in _runs(server)}
    assert len(found) == 11
    assert found[run].data.metrics["speedup"] == pytest.approx(1.83, abs=0.01)
    names = json.loads(urlopen(f"{server}/api/2.0/mlflow/artifacts/list?run_id={run}").read())["files"]
    assert {"report.html", "journal.jsonl", "tuned_recipe.yaml"} <= {file["path"] for file in names}
    report = urlopen(f"{server}/get-artifact?path=report.json&run_uuid={run}").read()
    assert report == (study / "report.json").read_bytes()


@needs_mlflow
def test_a_server_that_is_not_there_is_given_up(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "s", "--to", "mlflow", "--tracking", "http://127.0.0.1:1"]) == 3
    assert "start its server" in capsys.readouterr().err


@needs_mlflow
def test_a_tracker_that_cannot_be_reached_is_said(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "s", "--to", "mlflow", "--tracking", "nothing://here"]) == 3
    assert "nothing://here" in capsys.readouterr().err


def _runs(tracking: str) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=tracking if "://" in tracking else Path(tracking).resolve().as_uri())
    experiment = client.get_experiment_by_name("cpu-moe")
    return list(client.search_runs([experiment.experiment_id]))
