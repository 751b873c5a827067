"""The end of a diagnosis: fixes of the wall, what to record to be sure, nodes that are needed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from analyzers import analyze
from analyzers.diagnosis import Analysis, Diagnosis, Wall, WallFinding
from analyzers.verdict import ABSTENTIONS
from autotune.cli import main
from autotune.diagnose.next_steps import RECORD, flag_words, next_steps
from autotune.diagnose.traced import situation_of_traces
from autotune.report import write_report
from autotune.tuning.events import BurstFinished, BurstStarted, Ended, Event, Judged, Proposed, StudyStarted
from policies.situation import Situation
from policies.trial import Phase, Status, Verdict
from tests.analyzers.drawing import GEMM, Drawing
from tests.autotune.report.drawn_study import OOM, STEPS, analysis_of, events, write_study
from trainer.burst import Outcome
from trainer.recipe.load import recipe_from
from trainer.recipe.schema import Recipe
from trainer.recipe.source import Source


def host_bound(folder: Path) -> Path:
    """Writes a trace of short kernels, each launched long after the previous one ended."""
    drawing = Drawing()
    for step in range(3):
        drawing.step(step, step * 1000, step * 1000 + 1000)
        for k in range(10):
            at = step * 1000 + k * 100
            drawing.operator("aten::mm", at, at + 80).kernel(GEMM, at + 90, at + 99, launched=at + 82)
    return drawing.write(folder)


def out_of_memory(nodes: int) -> tuple[Analysis, Situation]:
    finding = WallFinding(wall=Wall.MEMORY, recoverable_us=0.0, share=1.0, evidence=["rank 0 ran out of memory"])
    diagnosis = Diagnosis(wall=Wall.MEMORY, margin=1.0, because="rank 0 ran out of memory", walls=[finding])
    data = {"model": "qwen3-235b-a22b", "cluster": {"gpu": "h100", "nodes": nodes}}
    recipe: Recipe = recipe_from(Source(name="r", data=data))
    analysis = Analysis(diagnosis=diagnosis, traces=[])
    return analysis, Situation(recipe=recipe, analysis=analysis, outcome=Outcome(failure=OOM))


def test_a_diagnosis_ends_in_what_to_try_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(host_bound(tmp_path))]) == 0
    text = capsys.readouterr().out
    end = " ".join(text[text.index("what to try next") :].split())
    assert "Fixes for the host wall, most recoverable time first. The recipe is not known (--recipe FILE)" in end
    assert "--cuda-graph-impl transformer_engine" in end
    assert "details of a fix: moe-autotune diagnose --explain" in end


def test_the_document_names_fixes_with_flags_costs_and_pages(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(host_bound(tmp_path)), "--html", str(tmp_path / "d.html"), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == 1
    assert document["diagnosis"]["wall"] == "host"
    first = document["next"]["fixes"][0]
    assert first["explain"] == f"moe-autotune diagnose --explain {first['fix']}"
    assert first["flags"]
    assert first["costs"]
    assert first["gives_back_us"] <= document["diagnosis"]["walls"][0]["recoverable_us"]
    page = (tmp_path / "d.html").read_text()
    assert page.index('id="walls"') < page.index('id="next"') < page.index('id="coverage"')
    assert first["title"] in page


def test_a_fix_without_a_flag_says_what_to_write(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(host_bound(tmp_path)), "--json"]) == 0
    (bound,) = [one for one in json.loads(capfd.readouterr().out)["next"]["fixes"] if one["fix"] == "cpu_affinity"]
    assert flag_words(bound).startswith("recipe: cpu_affinity: spread; launch script: torchrun --numa-binding=")


def test_advice_leaves_out_what_the_recipe_has_switched_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path / "study")
    assert main(["diagnose", str(study / "3"), "--json"]) == 0
    of_trial = json.loads(capfd.readouterr().out)["next"]
    assert "not known" not in of_trial["said"]
    recipe = tmp_path / "r.yaml"
    recipe.write_text("model: qwen3-30b-a3b\ncluster: {gpu: h100, nodes: 2}\nknobs: {moe_grouped_gemm: true}\n")
    assert main(["diagnose", str(host_bound(tmp_path / "t")), "--recipe", str(recipe), "--json"]) == 0
    named = {fix["fix"] for fix in json.loads(capfd.readouterr().out)["next"]["fixes"]}
    assert "grouped_gemm" not in named
    assert "cuda_graphs" in named


@pytest.mark.parametrize("text", ["{", "{}", '{"recipe": {}, "number": 1, "seed": 1}'])
def test_a_file_next_to_a_trace_is_not_mistaken_for_a_burst(tmp_path: Path, text: str) -> None:
    path = host_bound(tmp_path)
    (tmp_path / "burst.json").write_text(text)
    analysis = analyze([path])
    assert situation_of_traces([path], analysis) is None


def test_every_reason_to_name_no_wall_says_what_to_record() -> None:
    keys = {abstain.__name__.removeprefix("_") for abstain in ABSTENTIONS}
    assert set(RECORD) == keys | {"no_traces", "steps_differ"}


def test_where_no_wall_is_named_the_page_says_the_likeliest_one_and_what_to_record() -> None:
    drawn = analysis_of(STEPS[1], burst=2)
    diagnosis = msgspec.structs.replace(drawn.diagnosis, wall=Wall.UNDETERMINED, doubt="too_close")
    found = next_steps(msgspec.structs.replace(drawn, diagnosis=diagnosis))
    assert found.wall is Wall.MEMORY
    assert found.said.startswith("No wall is named; memory would be next, with at most 31.0 % of the step.")
    assert found.record == RECORD["too_close"]
    assert found.fixes[0]["fix"] == "drop_recompute"


def test_a_model_that_fits_nowhere_is_given_the_nodes_it_needs() -> None:
    analysis, situation = out_of_memory(nodes=1)
    found = next_steps(analysis, situation)
    assert found.nodes_needed is not None
    assert found.nodes_needed > 1
    assert f"no legal setting fits on 1 node; at least {found.nodes_needed} are needed." in found.said
    enough, situation = out_of_memory(nodes=found.nodes_needed)
    assert next_steps(enough, situation).nodes_needed is None


def test_a_report_in_which_nothing_ran_says_what_would(tmp_path: Path) -> None:
    page = write_report(write_study(tmp_path / "study", events(STEPS[:1]))).read_text()
    assert "Raise cluster.memory_gib or add ranks" in page


def test_a_fix_is_explained_and_a_wrong_name_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--explain", "cuda_graphs"]) == 0
    assert capsys.readouterr().out.startswith("CUDA graphs: replay launches instead of issuing them.")
    assert main(["diagnose", "--explain", "cuda_graph"]) == 2
    assert "did you mean cuda_graphs" in capsys.readouterr().err


def ran_out_of_memory(recipe: Recipe) -> list[Event]:
    """Returns the events of a study of one burst, which did not fit."""
    values = recipe.model_dump(mode="json")
    proposed = Proposed(
        trial=0, parent=None, phase=Phase.FIT, fix="base", because="as given", recipe=values, changes={}, gain=None
    )
    return [
        StudyStarted(
            at=1.0, version="0.1.0", name="r", recipe=values, digest=recipe.digest(), seed=1, environment={"host": "h"}
        ),
        proposed,
        BurstStarted(burst=1, trial=0, purpose="measure"),
        BurstFinished(burst=1, trial=0, outcome=Outcome(failure=OOM, limit_gib=79.18, ranks=16), seconds=9.0, ranks=16),
        Judged(trial=0, status=Status.OOM, verdict=Verdict.REJECTED, because="out of memory"),
        Ended(at=20.0, status="infeasible", because="nothing fits"),
    ]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("deepseek-v3", "no legal setting fits on 2 nodes; "),
        ("qwen3-30b-a3b", "By estimate this fits, with "),
    ],
)
def test_a_report_of_a_study_that_ran_out_of_memory_says_what_would_fit(tmp_path: Path, model: str, says: str) -> None:
    recipe = recipe_from(Source(name="r", data={"model": model, "cluster": {"gpu": "h100", "nodes": 2}}))
    study = write_study(tmp_path / "study", ran_out_of_memory(recipe))
    page = write_report(study).read_text()
    assert says in page
    assert page.index('id="next"') < page.index('id="throughput"')
    assert says in (study / "report.md").read_text()
