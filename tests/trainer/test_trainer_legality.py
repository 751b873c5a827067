"""A recipe is checked for the trainer that will run it."""

from __future__ import annotations

from typing import Any

from tests.policies.drawn import cpu_recipe
from trainer.legality import findings_of
from trainer.recipe import Recipe
from trainer.recipe.rules import FindingKind


def of_trainer(command: list[str], knobs: dict[str, Any], **trainer: Any) -> Recipe:
    data = cpu_recipe().replace(knobs).model_dump(mode="json")
    data["burst"] |= {"engine": "command"}
    data["trainer"] = {"command": command, **trainer}
    return Recipe.model_validate(data)


def errors(recipe: Recipe) -> set[str]:
    return {finding.rule for finding in findings_of(recipe) if finding.kind is FindingKind.ERROR}


def test_a_knob_that_the_trainer_cannot_express_is_an_error() -> None:
    assert "not-expressed" in errors(of_trainer(["python", "pretrain_gpt.py"], {"cpu_affinity": "spread"}))
    assert "not-expressed" not in errors(of_trainer(["python", "pretrain_gpt.py"], {}))


def test_a_word_of_the_command_that_the_recipe_does_not_mention_is_a_warning() -> None:
    recipe = of_trainer(["python", "pretrain_gpt.py", "--moe-grouped-gemm"], {})
    said = [finding for finding in findings_of(recipe) if finding.rule == "said-by-command-only"]
    assert [(finding.kind, finding.knobs) for finding in said] == [(FindingKind.WARNING, ("moe_grouped_gemm",))]


def test_a_custom_trainer_is_checked_by_the_general_rules() -> None:
    assert "not-expressed" not in errors(of_trainer(["train", "{args}"], {"cpu_affinity": "spread"}, kind="custom"))
