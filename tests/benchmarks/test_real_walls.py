"""Planted walls on real ranks: one of the scenes on a real Slurm, and how a study is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.real_walls import SCENES, Scene, judged, play
from tests.trainer.launchers.slurm.cluster import why_not
from tests.trainer.launchers.slurm.network import NotJoinedError
from trainer.recipe import Recipe
from trainer.recipe.rules import check

BY_WALL = {str(scene.wall): scene for scene in SCENES}


def trial(number: int, rate: float, *, changes: dict[str, Any], verdict: str = "accepted") -> dict[str, Any]:
    wall = {"wall": "host", "share": 0.6, "recoverable_us": 1.0, "evidence": []}
    return {
        "number": number,
        "parent": number - 1,
        "fix": "micro_batch_up",
        "changes": changes,
        "predicted": {"gain": 0.2},
        "verdict": verdict,
        "outcome": {"tokens_per_s_per_gpu": rate},
        "diagnosis": {"wall": "host", "because": "no operator runs", "walls": [wall]},
    }


def of_study(scene: Scene, *trials: dict[str, Any]) -> Any:
    return judged(scene, {"trials": list(trials), "speedup": 1.8, "speedup_ci": [1.5, 2.1]}, bursts=len(trials))


def test_a_scene_is_right_where_its_wall_is_named_and_its_mistake_fixed() -> None:
    base, better = trial(0, 100.0, changes={}), trial(1, 150.0, changes={"micro_batch_size": [1, 4]})
    played = of_study(BY_WALL["host"], base, better)
    assert played.right
    assert (played.share, played.predicted, played.obtained) == (0.6, 0.2, 0.5)
    assert not of_study(BY_WALL["memory"], base, better).right
    assert not of_study(BY_WALL["host"], base, trial(1, 150.0, changes=better["changes"], verdict="rejected")).right


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: str(scene.wall))
def test_the_recipe_of_a_scene_is_legal(scene: Scene) -> None:
    found = [finding for finding in check(Recipe.model_validate(scene.recipe())) if finding.kind == "error"]
    assert found == []


@pytest.mark.slurm
@pytest.mark.megatron
@pytest.mark.usefixtures("light_agent")
def test_the_tuner_names_and_fixes_a_host_wall_on_two_nodes(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    try:
        played = play(BY_WALL["host"], tmp_path, budget=5, quiet=True)
    except NotJoinedError as error:
        pytest.skip(str(error))
    assert played.named == "host", played.because
    assert played.fix, (tmp_path / "tuner.log").read_text()
