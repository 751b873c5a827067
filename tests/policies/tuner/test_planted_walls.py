"""The policy against walls planted in the simulated engine, through the real analysers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from analyzers.diagnosis import Wall
from policies.changes.legality import Refusal, derive
from policies.changes.recompute import rungs
from policies.noise import throughput
from policies.trial import Phase, Status
from tests.policies.drawn import cpu_recipe, gpu_recipe
from tests.policies.tuned import Run
from trainer.engines.simulated import Machine, true_throughput
from trainer.recipe import Recipe
from trainer.recipe.machine import Compute, Host, Links, Memory, Noise
from trainer.recipe.rules import check
from trainer.recipe.rules.examples import FULL

EP8 = {"expert_model_parallel_size": 8, "recompute_granularity": "selective", "recompute_modules": ("layernorm",)}
ROOMY = Memory(activations=0.5)
FAST = Links(nvlink=50.0, network=50.0, latency=0.05)
FREE = (
    "micro_batch_size",
    "recompute_granularity",
    "recompute_modules",
    "threads_per_rank",
    "moe_token_dispatcher_type",
)


def test_communication_across_nodes_gets_a_communication_fix(tmp_path: Path) -> None:
    run = Run(gpu_recipe(), tmp_path, machine=Machine(host=Host(launch=0.2), links=Links(network=0.5), memory=ROOMY))
    assert run.best.analysis is not None
    assert run.best.analysis.diagnosis.wall is Wall.COMMUNICATION
    trial = run.step(Phase.PROFILE)
    assert trial.proposal.fix in {"overlap_expert_communication", "dispatcher", "less_expert_parallel"}
    assert trial.accepted


def test_full_recompute_is_dropped(tmp_path: Path) -> None:
    compute = Compute(half_rows=0.01, half_width=0.01)
    machine = Machine(links=FAST, host=Host(launch=0.1), compute=compute, memory=ROOMY)
    run = Run(gpu_recipe(FULL), tmp_path, machine=machine)
    trial = run.step(Phase.PROFILE)
    assert trial.proposal.fix == "drop_recompute"
    assert trial.accepted


def test_a_base_that_does_not_fit_ends_fitting(tmp_path: Path) -> None:
    run = Run(gpu_recipe({"micro_batch_size": 8}), tmp_path, machine=Machine(memory=Memory(activations=1.3)))
    while throughput(run.best) is None:
        assert run.best.status is Status.OOM
        run.step(Phase.FIT)
        assert len(run.trials) < 6
    assert len(run.trials) > 1
    assert run.propose(Phase.FIT) is None


def test_a_host_that_cannot_keep_up_gets_fewer_launches(tmp_path: Path) -> None:
    run = Run(gpu_recipe(EP8), tmp_path, machine=Machine(host=Host(launch=8.0), memory=ROOMY, links=FAST))
    assert run.best.analysis is not None
    assert run.best.analysis.diagnosis.wall is Wall.HOST
    trial = run.step(Phase.PROFILE)
    assert trial.proposal.fix in {"micro_batch_up", "cuda_graphs"}
    assert trial.accepted


def test_garbage_collection_gets_its_fix(tmp_path: Path) -> None:
    machine = Machine(host=Host(gc_ms=1000.0), memory=ROOMY, links=FAST)
    run = Run(gpu_recipe({"micro_batch_size": 2}), tmp_path, machine=machine)
    run.tune(12)
    assert any(trial.proposal.fix == "manual_gc" and trial.accepted for trial in run.trials)


@pytest.mark.parametrize("base", [gpu_recipe(FULL | {"micro_batch_size": 4}), cpu_recipe(FULL)], ids=["gpu", "cpu"])
def test_a_whole_run_is_legal_never_repeats_and_never_beats_its_bound(base: Recipe, tmp_path: Path) -> None:
    run = Run(base, tmp_path)
    run.tune(20)
    digests = [trial.recipe.digest() for trial in run.trials]
    assert len(set(digests)) == len(digests)
    for trial in run.trials[1:]:
        assert [f for f in check(trial.recipe) if f.kind == "error"] == []
        gain, bound = trial.proposal.predicted.gain, trial.proposal.predicted.gain_bound
        assert gain is None or (bound is not None and gain <= bound)
    assert run.policy.why_stopped(run.best, run.trials)


def test_a_run_cut_short_goes_on_as_it_would_have(tmp_path: Path) -> None:
    whole = Run(cpu_recipe(FULL), tmp_path / "whole", seed=5)
    whole.tune(12)
    cut = Run(cpu_recipe(FULL), tmp_path / "cut", seed=5)
    cut.tune(5)
    resumed = Run(cpu_recipe(FULL), tmp_path / "resumed", seed=5)
    resumed.trials = list(cut.trials)
    resumed.tune(12)
    assert [t.recipe.digest() for t in resumed.trials] == [t.recipe.digest() for t in whole.trials]


@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_of_a_small_space_is_reached_within_20_bursts(seed: int, tmp_path: Path) -> None:
    free = (
        "micro_batch_size",
        "recompute_granularity",
        "recompute_modules",
        "threads_per_rank",
        "moe_token_dispatcher_type",
    )
    base = _only(free, cpu_recipe(FULL | {"use_distributed_optimizer": True}))
    machine = Machine(links=Links(nvlink=0.125), noise=Noise(step=0.002, burst=0.002))
    optimum = max(_rate(recipe, machine) for recipe in _space(base))
    run = Run(base, tmp_path / "run", machine=machine, seed=seed)
    best = throughput(run.tune(20))
    assert best is not None
    assert best >= 0.95 * optimum


def _only(free: tuple[str, ...], recipe: Recipe) -> Recipe:
    """Every knob frozen but these and the ones that go with them."""
    from trainer.recipe.knobs import KNOBS

    frozen = tuple(set(KNOBS) - {*free, "recompute_method", "recompute_num_layers"})
    return recipe.model_copy(update={"tune": recipe.tune.model_copy(update={"freeze": frozen})})


def _space(base: Recipe) -> list[Recipe]:
    points = product((1, 2, 4, 8), rungs(base), (1, 2, 4), ("alltoall", "allgather"))
    recipes = [base]
    for micro_batch, recompute, threads, kind in points:
        point = {"micro_batch_size": micro_batch, "threads_per_rank": threads, "moe_token_dispatcher_type": kind}
        derived = derive(base, point | recompute)
        if not isinstance(derived, Refusal):
            recipes.append(derived)
    return recipes


def _rate(recipe: Recipe, machine: Machine) -> float:
    """Noise-free tokens/s, 0 for what does not fit."""
    return true_throughput(recipe, machine) or 0.0
