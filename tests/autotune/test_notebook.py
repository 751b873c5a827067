"""Tables for notebooks: DataFrames with units in their columns' names, and pandas only when one is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pandas import DataFrame

import autotune
from analyzers import analyze
from analyzers.diagnosis import Analysis, Diagnosis, Wall
from autotune.report.document import measured
from tests.analyzers.drawing import GEMM, Drawing
from tests.analyzers.drawn_jobs import DrawnJob, uneven
from tests.autotune.report.drawn_study import STEPS, events, write_study
from tests.conftest import HANG_S
from trainer.errors import BadInputError
from trainer.estimate.plan import best_layouts
from trainer.recipe import load_recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.source import Source

UNITS = ("_us", "_s", "_gib", "_tokens_per_s_per_gpu", "_gpu")
TIMES = 1e-6  # relative: sums of floats


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return DrawnJob(compute_us=uneven(2, steps=4, layers=4), groups=[(0, 1)]).analyze(tmp_path_factory.mktemp("job"))


def test_a_study_is_a_table_of_its_trials(tmp_path: Path) -> None:
    study = autotune.load_study(write_study(tmp_path / "study"))
    trials = study.trials()
    assert list(trials["trial"]) == list(range(len(STEPS)))
    assert list(trials["fix"]) == [step.fix for step in STEPS]
    figures = measured(study.history.attempted[3])
    assert figures is not None
    row = trials.set_index("trial").loc[3]
    assert row["step_us"] == figures.step_us.median
    assert row["peak_gib"] == 0.95
    assert row["changes"] == "micro_batch_size 1 → 4"
    assert trials["best"].sum() == 1
    assert trials["tokens_per_s_per_gpu"].dtype == "float64"
    assert trials["step_us"].isna().sum() == sum(step.step_ms is None for step in STEPS)


def test_a_study_that_has_just_started_is_a_table_too_and_a_folder_without_a_study_is_an_error(tmp_path: Path) -> None:
    started = autotune.load_study(write_study(tmp_path / "study", events(STEPS[:0]))).trials()
    assert len(started) == 0
    whole = autotune.load_study(write_study(tmp_path / "whole")).trials()
    assert list(started.columns) == list(whole.columns)
    assert (whole["host_us"].isna() == whole["wall"].isna()).all()
    with pytest.raises(BadInputError, match=r"it has no journal\.jsonl"):
        autotune.load_study(tmp_path)


def test_the_steps_of_an_analysis_are_a_table_whose_parts_add_up(job: Analysis) -> None:
    steps = job.steps()
    assert len(steps) == 2 * 4
    parts = steps[["compute_us", "exposed_communication_us", "exposed_copy_us", "idle_us"]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx(steps["duration_us"].to_numpy(), rel=TIMES)
    assert steps["judged"].sum() == 4
    exposed = steps.filter(regex="^exposed_ep").sum(axis=1)
    assert (steps["waiting_ep_combine_us"] <= exposed + 1e-3).all()


def test_the_kernels_and_the_ranks_of_an_analysis_are_tables(job: Analysis) -> None:
    kernels, ranks = job.kernels(), job.ranks()  # pyrefly: ignore[not-callable]
    assert kernels["share"].groupby(kernels["rank"]).sum().to_numpy() == pytest.approx([1.0, 1.0])
    assert (kernels["mean_us"] * kernels["count"]).to_numpy() == pytest.approx(kernels["total_us"].to_numpy())
    assert list(ranks["rank"]) == [rank.rank for rank in job.ranks]
    assert list(ranks["own_us"]) == [rank.own_us for rank in job.ranks]


def test_tables_of_nothing_have_their_columns() -> None:
    nothing = Diagnosis(wall=Wall.UNDETERMINED, margin=0.0, because="no trace")
    empty = Analysis(diagnosis=nothing, traces=[])
    assert len(empty.steps()) == len(empty.kernels()) == 0
    assert {"step", "duration_us", "wall", "exposed_ep_dispatch_us"} <= set(empty.steps())
    assert {"kernel", "total_us"} <= set(empty.kernels())
    assert {"rank", "own_us"} <= set(empty.ranks())  # pyrefly: ignore[not-callable]


def test_layouts_are_a_table_fastest_first() -> None:
    data = {"model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 2}, "parallelism": {"ep": 8}}
    layouts = best_layouts(recipe_from(Source(name="r", data=data)), 4)
    assert list(layouts["place"]) == [1, 2, 3, 4]
    assert layouts["fits"].all()
    assert (layouts["needs_gib"] <= layouts["limit_gib"]).all()
    rates = layouts["tokens_per_s_per_gpu"]
    assert rates.iloc[0] >= 0.998 * rates.max()
    with pytest.raises(ValueError, match="at least 1"):
        best_layouts(load_recipe("cpu-moe"), 0)


def test_every_figure_has_its_unit_in_its_name(job: Analysis, tmp_path: Path) -> None:
    without = {
        "trial", "parent", "best", "steps", "bursts", "rank", "device", "warm_up", "judged", "count", "share",
        "wall_share", "predicted_gain", "predicted_gain_low", "predicted_gain_high", "gain_bound",
    }  # fmt: skip
    tables: list[DataFrame] = [
        autotune.load_study(write_study(tmp_path / "study")).trials(),
        job.steps(),
        job.kernels(),
        job.ranks(),  # pyrefly: ignore[not-callable]
    ]
    for table in tables:
        figures = set(map(str, table.select_dtypes("number")))
        assert {name for name in figures if not name.endswith(UNITS)} <= without


def test_no_command_loads_pandas() -> None:
    code = (
        "import sys, autotune, analyzers, trainer.estimate.plan, autotune.commands.diagnose, analyzers.analysis\n"
        "from autotune.diagnose.page import diagnosis_page\n"
        "from autotune.diagnose.next_steps import next_steps\n"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG_S).returncode == 0


def test_one_path_is_analyzed_like_a_list_of_it(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 1000)
    path = drawing.kernel(GEMM, 100, 900, launched=50).write(tmp_path)
    for given in (path, str(path)):
        assert analyze(given).steps().equals(analyze([path]).steps())
