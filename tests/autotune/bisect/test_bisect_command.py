"""`bisect` on simulated clusters: two recipes in, the guilty change out; journal, resume, limits and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import main
from autotune.tuning.journal import JOURNAL, read_events
from tests.autotune.outside import SMALL

KNOBS = "use_distributed_optimizer: true, overlap_grad_reduce: true, recompute_granularity: null"
GOOD = SMALL.replace(
    "use_distributed_optimizer: true, recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1",
    KNOBS + ", manual_gc: true, moe_router_fusion: true",
)
FULL = "recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1"
BAD = GOOD.replace("recompute_granularity: null", FULL).replace("manual_gc: true", "manual_gc: false")
TOO_LARGE = GOOD.replace("seq_length: 2048", "seq_length: 65536, micro_batch_size: 4").replace("gc: true", "gc: false")


@pytest.fixture(autouse=True)
def _recipes(empty_folder: Path) -> None:
    assert GOOD != BAD
    for name, text in {"a.yaml": GOOD, "b.yaml": BAD, "large.yaml": TOO_LARGE}.items():
        (empty_folder / name).write_text(text)


def bisected(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["bisect", *words, "--json"]) == code
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    return document


def test_the_change_that_slows_b_down_is_named_with_its_effect(capfd: pytest.CaptureFixture[str]) -> None:
    found = bisected(capfd, "a.yaml", "b.yaml", "--study", "s")
    assert found["answered"] == "culprits"
    (culprit,) = found["culprits"]
    assert culprit["differences"] == ["recompute_granularity and 2 more"]
    assert culprit["time"]["low"] < found["total"]["change"] < culprit["time"]["high"] + 0.1
    page = Path("s/report.html").read_text()
    assert "recompute_granularity and 2 more" in page
    assert "The traced step of A and B" in page
    assert "recompute_granularity: null" in Path("s/fixed_recipe.yaml").read_text()


def test_a_bisection_cut_in_the_middle_resumes_to_the_same_bursts(capfd: pytest.CaptureFixture[str]) -> None:
    whole = bisected(capfd, "a.yaml", "b.yaml", "--study", "s")
    journal = Path("s") / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    again = bisected(capfd, "a.yaml", "b.yaml", "--study", "s", "--resume")
    assert again["bursts"] == whole["bursts"]
    assert len(read_events(journal)[0]) >= len(lines)


def test_a_failure_is_bisected_too(capfd: pytest.CaptureFixture[str]) -> None:
    found = bisected(capfd, "a.yaml", "large.yaml", "--study", "s")
    assert (found["answered"], found["symptom"]) == ("culprits", "oom")
    assert "manual_gc" not in {name for each in found["culprits"] for name in each["differences"]}


def test_a_budget_leaves_the_answer_open_and_says_how_to_resume(capfd: pytest.CaptureFixture[str]) -> None:
    found = bisected(capfd, "a.yaml", "b.yaml", "--study", "s", "--budget", "2")
    assert (found["answered"], found["ended"], len(found["bursts"])) == ("undecided", "budget", 2)
    assert main(["status", "s", "--json"]) == 0
    resumed = json.loads(capfd.readouterr().out)["resume"].split()[2:]
    assert resumed[:2] == ["s/recipe.resolved.yaml", "s/b.yaml"]
    assert len(bisected(capfd, *resumed)["bursts"]) > 2


def test_a_dry_run_names_the_suspects_and_the_price_and_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    found = bisected(capfd, "a.yaml", "b.yaml", "--dry-run")
    assert found["differences"][0]["name"] == "recompute_granularity and 2 more"
    assert 2 < found["bursts"] <= found["bursts_high"]
    assert not Path("studies").exists()


def test_recipes_that_cannot_be_bisected_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    Path("nodes.yaml").write_text(GOOD.replace("nodes: 2", "nodes: 4"))
    for words, said in (
        (["a.yaml", "a.yaml"], "they do not differ"),
        (["a.yaml", "nodes.yaml"], "A and B differ in it"),
    ):
        assert main(["bisect", *words]) == 2
        assert said in capfd.readouterr().err


def test_a_study_of_another_question_is_not_resumed(capfd: pytest.CaptureFixture[str]) -> None:
    bisected(capfd, "a.yaml", "b.yaml", "--study", "s", "--budget", "2")
    assert main(["run", "a.yaml", "--study", "s", "--resume"]) == 2
    assert "the study is a bisection" in capfd.readouterr().err


@pytest.mark.thorough
def test_bursts_that_scatter_as_much_as_the_change_costs_are_repeated_and_nothing_wrong_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for noise, seed in ((0.2, 1), (0.4, 2), (0.6, 3)):
        Path("noisy.yaml").write_text(f"noise: {{step: 0.02, burst: {noise}}}\n")
        for name in ("a", "b"):
            text = Path(f"{name}.yaml").read_text()
            Path(f"noisy_{name}.yaml").write_text(
                text.replace("engine: simulated", "engine: simulated, machine: noisy.yaml")
            )
        words = ["noisy_a.yaml", "noisy_b.yaml", "--budget", "12", "--seed", str(seed), "--study", f"s{seed}"]
        found = bisected(capfd, *words)
        named = [each["differences"] for each in found["culprits"]]
        assert found["answered"] == "undecided" or named == [["recompute_granularity and 2 more"]]
        assert found["answered"] != "undecided" or len(found["bursts"]) == 12
