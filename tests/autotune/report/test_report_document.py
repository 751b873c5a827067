"""report.json: exactly the contract's fields, from the journal alone, the same every time."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.report import document_of, write_report
from autotune.report.document import median_interval
from autotune.tuning.history import History
from tests.autotune.report.drawn_study import COST_S, STEPS, events, write_study
from trainer.errors import BadInputError

TOP = {
    "schema", "study", "status", "base", "reference", "best", "speedup", "speedup_ci", "gpu_hours", "simulated",
    "environment", "links", "unlike_production", "trials", "gpu_hour_price", "planned_gpu_hours", "saved_gpu_hours",
    "speedup_provisional", "speedup_since", "warnings", "idle_gpu_hours", "fixes",
    "measured_at_full_size", "sizes", "probe",
}  # fmt: skip
TRIAL = {
    "number", "parent", "phase", "fix", "because", "changes", "predicted", "status", "failure", "outcome", "diagnosis",
    "verdict", "verdict_because", "verdict_reason", "provisional", "numerics", "reason", "fixes", "interaction",
    "fidelity",
}  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    study = write_study(tmp_path_factory.mktemp("drawn") / "study")
    write_report(study)
    read: dict[str, Any] = json.loads((study / "report.json").read_text())
    return read


def test_the_document_has_the_fields_of_the_contract_and_no_other(report: dict[str, Any]) -> None:
    assert set(report) == TOP
    for trial in report["trials"]:
        assert set(trial) == TRIAL
        interval = {"gain_low", "gain_high", "fits_probability"}
        assert set(trial["predicted"]) == {"gain", "gain_bound", "peak_gib"} | interval
    ran = report["trials"][1]
    assert set(ran["outcome"]) == {
        "step_us", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "peak_gib", "loss", "cost_s", "simulated",
        "outside_gib",
    }  # fmt: skip
    assert ran["outcome"]["simulated"] is False
    assert set(ran["outcome"]["step_us"]) == {"median", "low", "high", "n"}
    assert set(report["trials"][0]["failure"]) == {"kind", "phase", "rank", "evidence", "node", "killed"}
    assert ran["diagnosis"]["wall"] == "memory"


def test_the_speedup_counts_from_the_first_recipe_that_runs(report: dict[str, Any]) -> None:
    assert (report["base"], report["best"]) == (1, 7)
    base, best = (report["trials"][report[name]]["outcome"] for name in ("base", "best"))
    assert report["speedup"] == pytest.approx(best["tokens_per_s_per_gpu"] / base["tokens_per_s_per_gpu"])
    assert report["speedup_ci"][0] < report["speedup"] < report["speedup_ci"][1]


def test_a_trial_pools_the_steps_of_its_repeats(report: dict[str, Any]) -> None:
    step = report["trials"][1]["outcome"]["step_us"]
    assert step["n"] == 24
    assert step["low"] < step["median"] < step["high"]


def test_the_bursts_of_a_trial_cost_what_they_cost_together(report: dict[str, Any]) -> None:
    assert report["trials"][1]["outcome"]["cost_s"] == pytest.approx(3 * COST_S)
    assert report["gpu_hours"] == pytest.approx(
        2 * COST_S * sum(len(t.repeats) + (not t.refused) for t in STEPS) / 3600
    )
    assert report["simulated"] is False


def test_changes_are_pairs_and_labelled_for_training(report: dict[str, Any]) -> None:
    assert report["trials"][3]["changes"] == {"micro_batch_size": [1, 4]}
    assert {trial["numerics"] for trial in report["trials"]} == {"training-equivalent"}


def test_what_failed_or_was_refused_has_no_outcome(report: dict[str, Any]) -> None:
    statuses = [trial["status"] for trial in report["trials"]]
    assert statuses == ["oom", "ok", "ok", "ok", "ok", "ok", "oom", "ok", "failed", "failed"]
    assert report["trials"][9]["failure"]["kind"] == "config"
    assert all((trial["outcome"] is None) == (trial["status"] != "ok") for trial in report["trials"])


def test_writing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study")
    names = ("report.html", "report.md", "report.json", "tuned_recipe.yaml")
    write_report(study)
    first = [(study / name).read_bytes() for name in names]
    for name in names:
        (study / name).unlink()
    write_report(study)
    assert [(study / name).read_bytes() for name in names] == first
    assert {path.name for path in study.iterdir()} == {*names, "journal.jsonl"}


def test_a_study_that_was_killed_is_interrupted_and_reported_up_to_there() -> None:
    document = document_of(History(events(STEPS[:3], ended=False)[:-1]))
    assert document.status == "interrupted"
    assert [trial.number for trial in document.trials] == [0, 1, 2]
    assert [trial.provisional for trial in document.trials] == [False, False, True]


def test_where_nothing_runs_there_is_no_speedup_and_no_recipe(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", events(STEPS[:1]))
    (study / "tuned_recipe.yaml").write_text("left over")
    page = write_report(study)
    read = json.loads((study / "report.json").read_text())
    assert (read["base"], read["best"], read["speedup"], read["speedup_ci"]) == (None, None, None, None)
    assert not (study / "tuned_recipe.yaml").exists()
    assert "nothing runs" in page.read_text()


def test_a_base_that_nothing_beats_has_a_speedup_of_exactly_one() -> None:
    document = document_of(History(events(STEPS[:2])))
    assert (document.speedup, document.speedup_ci) == (1.0, (1.0, 1.0))


def test_a_folder_without_a_journal_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="not a study"):
        write_report(tmp_path)


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=60))
def test_the_interval_holds_the_median_and_stays_inside_the_data(values: list[float]) -> None:
    ordered = sorted(values)
    low, high = median_interval(ordered)
    assert ordered[0] <= low <= median(ordered) <= high <= ordered[-1]


def test_few_steps_give_the_extremes_and_many_a_narrower_interval() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0]) == (1.0, 4.0)
    assert median_interval([float(value) for value in range(1, 9)]) == (1.0, 8.0)
    low, high = median_interval([float(value) for value in range(1, 101)])
    assert (low, high) == (40.0, 61.0)
