"""When the simulation's TRUTH_VERSION has to be raised, and that no process has a truth of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.policy.scenarios import scenarios
from tests.places import ROOT
from trainer.burst import Burst
from trainer.engines.simulated import SimulatedEngine, true_throughput
from trainer.engines.simulated.truth import TRUTH_VERSION

KEPT = Path(__file__).with_name("truths.json")


def truths(folder: Path) -> list[dict[str, Any]]:
    """Returns ten recipes on ten clusters, as changes of the clusters' own: true throughput, and steps and peaks of a
    burst."""
    found = []
    by_name = {scenario.name: scenario for scenario in scenarios()}
    for number, kept in enumerate(json.loads(KEPT.read_text())["truths"]):
        scenario = by_name[kept["scenario"]]
        changes = {knob: tuple(to) if isinstance(to, list) else to for knob, to in kept["changes"].items()}
        recipe = scenario.recipe.replace(changes)
        untraced = recipe.model_copy(update={"burst": recipe.burst.model_copy(update={"trace_steps": 0})})
        engine = SimulatedEngine(folder / "engine")
        outcome = engine.run(Burst(number=number, recipe=untraced, folder=folder / str(number), seed=1))
        found.append(
            {
                "scenario": scenario.name,
                "changes": kept["changes"],
                "true_tokens_per_s_per_gpu": true_throughput(recipe, scenario.machine),
                "step_us": outcome.step_us,
                "peak_gib": max(outcome.peak_gib, default=None),
                "failure": outcome.failure.kind.value if outcome.failure else None,
            }
        )
    return found


def test_a_changed_outcome_comes_with_another_version(tmp_path: Path) -> None:
    """When the change is wanted: raise TRUTH_VERSION, rewrite truths.json (`python -m
    tests.trainer.engines.test_truth`), search the best known recipes again (`python -m benchmarks.policy
    --refresh`)."""
    kept = json.loads(KEPT.read_text())
    assert kept["version"] == TRUTH_VERSION, "truths.json is of another version: write it anew"
    now = json.loads(json.dumps(truths(tmp_path)))
    assert len(now) == len(kept["truths"])
    for one, other in zip(now, kept["truths"], strict=True):
        for name in ("scenario", "failure"):
            assert one[name] == other[name], one["scenario"]
        for name in ("true_tokens_per_s_per_gpu", "peak_gib", "step_us"):
            same = one[name] is None if other[name] is None else one[name] == pytest.approx(other[name], rel=1e-9)
            assert same, f"{one['scenario']}: {name} was {other[name]}, is {one[name]}"


@pytest.mark.thorough
def test_every_process_has_the_same_truth() -> None:
    """Text hashes differ from process to process; nothing of an outcome may hang on them."""
    program = (
        "import json, tempfile, pathlib\n"
        "from tests.trainer.engines.test_truth import truths\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    print(json.dumps(truths(pathlib.Path(folder))))\n"
    )
    versions = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(versions) == 1


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as scratch:
        written = {"version": TRUTH_VERSION, "truths": truths(Path(scratch))}
    KEPT.write_text(json.dumps(written, indent=1) + "\n")
