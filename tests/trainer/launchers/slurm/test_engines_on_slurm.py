"""Both engines over two nodes of a real Slurm: bursts of our own worker on warm ranks, bursts of a trainer of the
user's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launchers.slurm.cluster import Cluster
from trainer.burst import Burst, BurstPhase, FailureKind, Outcome
from trainer.engines.command.engine import CommandEngine
from trainer.engines.command.follow import Patience
from trainer.engines.megatron.engine import MegatronEngine
from trainer.errors import ToolError
from trainer.launchers.processes import marked
from trainer.recipe import Recipe, load_recipe

pytestmark = pytest.mark.slurm

TRAINER = Path(__file__).parents[2] / "engines/command/fake_trainer.py"
SMALL = {"seq_length": 32, "global_batch_size": 2}  # a short training: its length is not tested
SHORT = Patience(first_s=300, all_s=300, least_s=15.0, writing_s=60.0, ending_s=60.0)


def recipe_on_nodes(launcher: Any = "slurm", **burst: Any) -> Recipe:
    data = load_recipe("cpu-moe").model_dump(mode="json")
    data["cluster"] |= {"nodes": 2, "gpus_per_node": 1, "memory_gib": 4.0}
    data["burst"] |= {"launcher": launcher, "warmup_steps": 1, "measure_steps": 2, "trace_steps": 1, **burst}
    return Recipe.model_validate(data)


def with_trainer(acts: dict[str, Any], launcher: Any = "slurm", **trainer: Any) -> Recipe:
    data = recipe_on_nodes(launcher, engine="command", warmup_steps=2, measure_steps=4).model_dump(mode="json")
    data["trainer"] = {"command": [sys.executable, str(TRAINER), json.dumps(acts)], "env": {}, **trainer}
    return Recipe.model_validate(data)


def trained(folder: Path, recipe: Recipe) -> Outcome:
    engine = CommandEngine(folder / "engine", patience=lambda recipe, trainer: SHORT)
    outcome = engine.run(Burst(number=1, recipe=recipe, folder=folder / "0001"))
    assert [env for _, env in marked() if env.get("MOE_AUTOTUNE_OUT", "").startswith(str(folder))] == []
    return outcome


@pytest.mark.megatron
def test_our_own_worker_trains_two_bursts_on_warm_ranks_of_two_nodes(allocated: Cluster, tmp_path: Path) -> None:
    engine = MegatronEngine(tmp_path / "engine")
    recipe = recipe_on_nodes().replace(SMALL)
    try:
        first = engine.run(Burst(number=1, recipe=recipe, folder=tmp_path / "0001"))
        second = engine.run(Burst(number=2, recipe=recipe, folder=tmp_path / "0002"))
    finally:
        engine.close()
    assert first.failure is None
    assert second.failure is None
    assert (first.warm, second.warm) == (False, True)
    assert first.loss == pytest.approx(second.loss)
    assert len(second.peak_gib) == 2
    assert sorted(path.name for path in (tmp_path / "0002/trace").glob("rank*.json*"))[0].startswith("rank0.")


@pytest.mark.megatron
def test_a_job_per_burst_keeps_no_ranks(light_agent: None, reachable: Cluster, tmp_path: Path) -> None:
    engine = MegatronEngine(tmp_path / "engine")
    recipe = recipe_on_nodes({"slurm": {"job": "per-burst"}}).replace(SMALL)
    outcome = engine.run(Burst(number=1, recipe=recipe, folder=tmp_path / "0001"))
    assert outcome.failure is None
    assert reachable.run("squeue", "-h") == ""


def test_a_trainer_of_the_users_runs_on_two_nodes(light_agent: None, allocated: Cluster, tmp_path: Path) -> None:
    outcome = trained(tmp_path, with_trainer({}))
    assert outcome.failure is None
    assert outcome.step_us == [3000.0, 4000.0, 5000.0, 6000.0]
    assert sorted(path.name for path in (tmp_path / "0001/trace").iterdir()) == [
        "rank0.pt.trace.json.gz",
        "rank1.pt.trace.json.gz",
    ]


def test_the_rank_of_the_second_node_that_runs_out_of_memory_is_named(
    light_agent: None, allocated: Cluster, tmp_path: Path
) -> None:
    failure = trained(tmp_path, with_trainer({"at": {"3": "oom"}})).failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.phase) == (FailureKind.OOM, 1, BurstPhase.BACKWARD)


def test_a_trainer_that_hangs_is_ended_on_both_nodes(light_agent: None, allocated: Cluster, tmp_path: Path) -> None:
    failure = trained(tmp_path, with_trainer({"at": {"4": "hang"}})).failure
    assert failure is not None
    assert failure.kind is FailureKind.HANG
    for rank in range(2):  # asked by the keeper of its node
        assert "most recent call first" in (tmp_path / f"0001/log/rank{rank}.log").read_text()


def test_a_job_per_burst_runs_a_trainer_of_the_users(light_agent: None, reachable: Cluster, tmp_path: Path) -> None:
    """Runs the lines that prepare the shell before the command of every rank."""
    launcher = {"slurm": {"job": "per-burst", "sbatch": ["--comment=tuning"]}}
    outcome = trained(tmp_path, with_trainer({"tell": ["MODULE"]}, launcher, setup=module_loaded(tmp_path)))
    assert outcome.failure is None
    assert outcome.step_us == [3000.0, 4000.0, 5000.0, 6000.0]
    assert "env 1 MODULE=cuda" in (tmp_path / "0001/log/rank1.log").read_text()


def module_loaded(folder: Path) -> list[str]:
    (folder / "modules.sh").write_text("module() { export MODULE=$2; }\n")
    return [f". {folder}/modules.sh", "module load cuda"]


def test_a_node_whose_shell_cannot_be_prepared_is_the_machines_fault(
    light_agent: None, allocated: Cluster, tmp_path: Path
) -> None:
    waits = 'until grep -q done "$MOE_AUTOTUNE_OUT/rank0.setup"; do sleep 0.1; done'
    line = f'if [ "$RANK" = 1 ]; then {waits}; ls /no/mount; fi'
    failure = trained(tmp_path, with_trainer({"step_s": 2.0}, setup=[*module_loaded(tmp_path), line])).failure
    assert failure is not None
    assert (failure.kind, failure.rank, failure.phase) == (FailureKind.INFRASTRUCTURE, 1, BurstPhase.START)
    assert failure.node is not None
    assert failure.evidence.startswith(f"node {failure.node}: trainer.setup: ")
    assert "cannot access '/no/mount'" in failure.evidence


def test_lines_that_no_node_gets_through_end_the_study_with_their_words(
    light_agent: None, allocated: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(ToolError, match=r"`module load cuda` ended with 127: .*not found"):
        trained(tmp_path, with_trainer({}, setup=["module load cuda"]))
