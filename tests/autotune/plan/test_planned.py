"""`plan`: what programs read of it leads back to the recipes it means, and what people read fits a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import main
from trainer.recipe import load_recipe
from trainer.recipe.rules import FindingKind, check

RECIPE = """\
name: small
model: qwen3-30b-a3b
cluster: {gpu: h100, nodes: 2}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(RECIPE)
    return tmp_path / "small.yaml"


def test_the_changes_of_a_ranked_choice_make_a_legal_recipe(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "small.yaml", "--top", "4", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["schema"] == 1
    assert [entry["rank"] for entry in document["layouts"]] == [1, 2, 3, 4]
    base = load_recipe("small.yaml")
    for entry in document["layouts"]:
        changed = base.replace({knob: to for knob, (_, to) in entry["changes"].items()})
        assert not [finding for finding in check(changed) if finding.kind is FindingKind.ERROR]
        assert entry["sizes"]["dp"] == changed.data_parallel_size
        assert entry["upper_gib"] + entry["outside_gib"] <= document["limit_gib"]
    assert document["fitting"] <= document["legal"]
    assert document["excluded"]["by_rule"]
    assert all(one["because"] for one in document["missing"])


def test_people_see_rank_layout_settings_throughput_memory_and_why(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "small.yaml", "--top", "3"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    for words in ("tokens/s/GPU", "MBS 1", "recompute", "not shown", "EP", "legal layouts"):
        assert words in said


def test_a_recipe_that_breaks_a_rule_is_planned_with_the_rule_named(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small.write_text(RECIPE + "parallelism: {tp: 3}\n")
    assert main(["plan", "small.yaml", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["recipe_findings"]
    assert "the recipe itself is illegal" in err


def test_a_plan_in_which_nothing_fits_ends_with_1(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    small.write_text(RECIPE.replace("nodes: 2", "nodes: 1, memory_gib: 8"))
    assert main(["plan", "small.yaml", "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    assert document["fitting"] == 0
    assert document["fewest_nodes"] > 1
    assert not any(entry["fits"] for entry in document["layouts"])


def test_a_plan_of_a_recipe_that_cannot_be_read_ends_with_2(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    small.write_text("name: [")
    assert main(["plan", "small.yaml"]) == 2
    assert "→" in capfd.readouterr().err
