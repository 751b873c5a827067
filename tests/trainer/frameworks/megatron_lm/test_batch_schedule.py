"""A schedule of batches stays the trainer's own: kept in the command, run at its last batch, said by check."""

from __future__ import annotations

import pytest

from autotune.importing.found import ImportOptions
from autotune.importing.reading import imported
from tests.autotune.importing.starts import LAUNCH
from trainer.frameworks.megatron_lm.batch_schedule import last_batch, schedule_of
from trainer.frameworks.megatron_lm.command import with_recipe
from trainer.legality import findings_of
from trainer.recipe import Recipe
from trainer.recipe.rules import FindingKind

LAST = '"${LOGGING_ARGS[@]}"'
FLAG = "--step-batch-size-schedule"
SCHEDULE = "0:64 250B:128 1.5T:256"
GIVEN = {"vocab_size": "32000", "1": "/ckpt", "2": "/tok.model", "3": "/data/a"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    script = (LAUNCH / "mixture_torchrun.sh").read_text(encoding="utf-8")
    for before, after in (("--global-batch-size $((WORLD_SIZE * 8))", ""), (LAST, f"{LAST} {FLAG} '{SCHEDULE}'")):
        assert before in script
        script = script.replace(before, after)
    file = tmp_path_factory.mktemp("launch") / "scheduled.sh"
    file.write_text(script, encoding="utf-8")
    found = imported(ImportOptions(file=str(file), gpu="h100", given=GIVEN))
    assert any(SCHEDULE in each.words for each in found.found.reading.kept)
    return found.recipe


def test_the_schedule_stays_and_the_recipe_has_its_last_batch(recipe: Recipe) -> None:
    assert recipe.trainer is not None
    assert schedule_of(recipe.trainer.command) == SCHEDULE
    assert recipe.training.global_batch_size == 256
    assert "global_batch_size" in recipe.tune.freeze


def test_an_exported_command_has_the_schedule_and_no_second_batch(recipe: Recipe) -> None:
    assert recipe.trainer is not None
    words = with_recipe(recipe.trainer.command, recipe)
    assert schedule_of(words) == SCHEDULE
    assert "--global-batch-size" not in words
    assert "--global-batch-size" in with_recipe([], recipe)


def test_check_says_which_batches_it_does_not_judge(recipe: Recipe) -> None:
    (said,) = [finding for finding in findings_of(recipe) if finding.rule == "batch-schedule"]
    assert said.kind is FindingKind.WARNING
    assert SCHEDULE in said.message
    assert "256" in said.message


@pytest.mark.parametrize(
    ("schedule", "batch"), [("0:8", 8), (SCHEDULE, 256), ("0:8 1K:16", 16), ("", None), ("8", None), ("0:8 x", None)]
)
def test_the_last_batch_is_read_from_a_well_formed_schedule(schedule: str, batch: int | None) -> None:
    assert last_batch(schedule) == batch
