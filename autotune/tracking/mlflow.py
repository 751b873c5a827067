"""Writes a study's runs to MLflow: a folder, a database or a server. Only this file imports MLflow.

MLflow is an extra (`pip install 'moe-autotune[mlflow]'`): mlflow-skinny, its client alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autotune.tracking.runs import Run, StudyRuns
from trainer.errors import BadInputError, Problem, ToolError

IDENTITY = "moe_autotune.study"
PARENT = "mlflow.parentRunId"  # tag of a trial's run: the id of the study's run
ARTIFACTS = ("report.html", "report.md", "report.json", "tuned_recipe.yaml", "recipe.yaml", "journal.jsonl")
FOLDER = "mlruns"  # default folder, in the working directory
MAX_TAG = 5000  # most characters of a tag
MAX_PARAMETER = 6000  # most characters of a parameter's value
MAX_PER_REQUEST = 100  # most metrics, parameters and tags per request
SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # 3.x refuses folders unless this is set
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # two lines per run
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # its default of 7 waits minutes for a wrong address
    "MLFLOW_DISABLE_TELEMETRY": "true",  # a study is sent only to the server that was named
}


def tracking_of(named: str | None) -> str:
    """Returns the given tracking URI, else MLFLOW_TRACKING_URI, else FOLDER."""
    return named or os.environ.get("MLFLOW_TRACKING_URI") or FOLDER


def write_runs(runs: StudyRuns, *, tracking: str, folder: Path, again: bool) -> str:
    """Writes the study and its trials, with the files of its `folder`; returns the id of the study's run. With `again`,
    older runs of the study are replaced.

    Raises BadInputError if there are older runs without `again`, ToolError without MLflow or if MLflow reports an
    error.
    """
    client, refused = _client(tracking)
    try:
        experiment = _experiment(client, runs.experiment)
        _make_room(client, experiment, runs.identity, again)
        study = _write(client, experiment, runs.study, {IDENTITY: runs.identity})
        for name in ARTIFACTS:
            if (folder / name).is_file():
                client.log_artifact(study, str(folder / name))
        for trial in runs.trials:
            _write(client, experiment, trial, {IDENTITY: runs.identity, PARENT: study})
    except refused as error:
        text = str(error).partition("\n")[0]
        raise ToolError(f"MLflow at {tracking}: {text}", hint="name another --tracking, or start its server") from error
    return study


def _client(tracking: str) -> tuple[Any, type[Exception]]:
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ToolError(f"MLflow is not installed: {error}", hint="pip install 'moe-autotune[mlflow]'") from None
    uri = tracking if "://" in tracking else Path(tracking).resolve().as_uri()
    return MlflowClient(tracking_uri=uri), MlflowException


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found else client.create_experiment(name))


def _make_room(client: Any, experiment: str, identity: str, again: bool) -> None:
    older = client.search_runs([experiment], filter_string=f"tags.`{IDENTITY}` = '{identity}'", max_results=1000)
    if older and not again:
        study = next((run for run in older if PARENT not in run.data.tags), older[0]).info.run_id
        problem = f"this study is there already, as run {study}"
        raise BadInputError(Problem(where="--to mlflow", what=problem, hint="--force replaces it"))
    for run in older:
        client.delete_run(run.info.run_id)


def _write(client: Any, experiment: str, run: Run, extra: dict[str, str]) -> str:
    from mlflow.entities import Metric, Param, RunTag

    started, ended = (round(1000 * at) for at in (run.started_at, run.ended_at))
    made = client.create_run(experiment, start_time=started, run_name=run.name).info.run_id
    metrics = [Metric(name, value, ended, 0) for name, value in run.metrics.items()]
    metrics += [
        Metric(name, value, ended, step) for name, curve in run.curves.items() for step, value in enumerate(curve)
    ]
    parameters = [Param(name, value[:MAX_PARAMETER]) for name, value in run.parameters.items()]
    tags = [RunTag(name, value[:MAX_TAG]) for name, value in (run.tags | extra).items()]
    for start in range(0, max(len(metrics), len(parameters), len(tags)), MAX_PER_REQUEST):
        part = slice(start, start + MAX_PER_REQUEST)
        client.log_batch(made, metrics=metrics[part], params=parameters[part], tags=tags[part])
    client.set_terminated(made, status="FAILED" if run.failed else "FINISHED", end_time=ended)
    return str(made)
