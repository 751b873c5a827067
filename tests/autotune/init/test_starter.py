"""Checks that `init`'s recipe runs as it is: `plan`'s first choice, legal, within memory, a comment at every knob."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.cli import main
from autotune.init.starter import starter
from trainer.estimate.plan.choices import choices
from trainer.estimate.plan.search import search
from trainer.recipe import load_recipe
from trainer.recipe.layout import sizes_of
from trainer.recipe.load import recipe_from
from trainer.recipe.rules import RULES, check
from trainer.recipe.rules.releases import NEWEST, is_among
from trainer.recipe.source import parse_source

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.mark.parametrize("model", ["deepseek-v3", "kimi-k2", "qwen3-235b-a22b"])
def test_a_large_model_starts_with_a_layout_that_fits_and_breaks_no_rule(model: str) -> None:
    assert main(["init", "--model", model, "--gpus", "256", "-o", "starter.yaml"]) == 0
    assert main(["check", "starter.yaml"]) == 0
    past = {rule.id for rule in RULES if not is_among(rule.versions, NEWEST)}
    assert {finding.rule for finding in check(load_recipe("starter.yaml"))} <= past


def test_a_starter_of_61_layers_runs_in_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    text = starter(model="deepseek-v3", gpu="h100", gpus=256).text
    Path("starter.yaml").write_text(text.replace("engine: megatron", "engine: simulated"))
    assert main(["run", "starter.yaml", "--budget", "1"]) == 0
    assert "best: trial 0" in capsys.readouterr().out


def test_a_starter_is_the_first_choice_of_plan() -> None:
    made = starter(model="qwen3-30b-a3b", gpu="b200", gpus=16)
    read = recipe_from(parse_source(made.text, name="starter.yaml"))
    assert read.diff(made.recipe) == {}
    assert sizes_of(read) == sizes_of(choices(search(read), 1)[0].recipe)
    assert "`moe-autotune plan`'s first choice" in made.text


def test_a_cluster_that_is_too_small_is_said_with_the_one_that_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--model", "mixtral-8x7b", "--gpus", "4", "-o", "starter.yaml"]) == 1
    said = capsys.readouterr().err
    assert "no layout fits 4 GPUs by estimate" in said
    assert "GPUs are enough" in said
    assert said.strip() in Path("starter.yaml").read_text()


def test_cpu_ranks_stay_on_the_one_node_that_a_launcher_here_has() -> None:
    cluster = starter(model="qwen3-30b-a3b", gpu="cpu", gpus=2).recipe.cluster
    assert (cluster.nodes, cluster.gpus_per_node) == (1, 2)
