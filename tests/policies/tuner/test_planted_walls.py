"""The tuner against walls planted in the simulated engine, through the real analyzers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from policies.changes.legality import Refusal, derive
from policies.changes.recompute import levels
from policies.noise import throughput
from policies.trial import Phase, Status
from policies.tuner.tuner import Tuner
from tests.policies.drawn import cpu_recipe, gpu_recipe, tuned_by
from tests.policies.tuned import Run
from tests.policies.tuner.planted_walls import MORE, PLANTED, Planted, first_proposals, largest
from trainer.engines.simulated import Machine, true_throughput
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.machine import Links, Memory, Noise
from trainer.recipe.rules import check
from trainer.recipe.rules.examples import FULL

FREE = (
    "micro_batch_size",
    "recompute_granularity",
    "recompute_modules",
    "threads_per_rank",
    "moe_token_dispatcher_type",
)
SEED = 5
LARGE = 0.2  # share of the step from which the planted wall is real, whatever compute could recover


def assert_answered(planted: Planted, folder: Path) -> None:
    run = Run(planted.recipe, folder, machine=planted.machine)
    assert run.best.analysis is not None
    assert run.best.analysis.diagnosis.wall is planted.wall or not planted.named
    finding = run.best.analysis.diagnosis.finding(planted.wall)
    assert finding is not None
    assert finding.share >= LARGE
    found = first_proposals(run, planted.fixes)
    assert planted.fixes & set(map(largest, found)), found
    assert not {knob for each in found for knob in planted.recipe.diff(each.recipe)} & set(planted.recipe.tune.freeze)


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED.keys())
def test_a_wall_planted_alone_gets_its_fix_in_the_first_two_proposals(planted: Planted, tmp_path: Path) -> None:
    assert_answered(planted, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("planted", MORE.values(), ids=MORE.keys())
def test_further_walls_planted_alone_get_their_fix(planted: Planted, tmp_path: Path) -> None:
    assert_answered(planted, tmp_path)


def test_from_a_base_that_does_not_fit_a_recipe_that_fits_is_reached(tmp_path: Path) -> None:
    run = Run(gpu_recipe({"micro_batch_size": 8}), tmp_path, machine=Machine(memory=Memory(activations=1.3)))
    while throughput(run.best) is None:
        assert run.best.status is Status.OOM
        run.step(Phase.FIT)
        assert len(run.trials) < 6
    assert len(run.trials) > 1
    assert run.propose(Phase.FIT) is None


@pytest.fixture(scope="module")
def on_cpus(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Returns a run of five bursts on CPU ranks."""
    return tuned(cpu_recipe(FULL), tmp_path_factory.mktemp("cpus"), 5)


def tuned(base: Recipe, folder: Path, budget: int) -> Run:
    run = Run(base, folder, seed=SEED)
    run.tune(budget)
    return run


def test_a_whole_run_is_legal_never_repeats_and_never_beats_its_bound(on_cpus: Run) -> None:
    assert_sound(on_cpus)


@pytest.mark.thorough
def test_so_is_a_whole_run_on_gpus(tmp_path: Path) -> None:
    assert_sound(tuned(gpu_recipe(FULL | {"micro_batch_size": 4}), tmp_path, 7))


def assert_sound(run: Run) -> None:
    digests = [trial.recipe.digest() for trial in run.trials]
    assert len(set(digests)) == len(digests)
    for trial in run.trials[1:]:
        assert [f for f in check(trial.recipe) if f.kind == "error"] == []
        gain, bound = trial.proposal.predicted.gain, trial.proposal.predicted.gain_bound
        assert gain is None or (bound is not None and gain <= bound)
    assert run.tuner.why_stopped(run.best, run.trials)


def test_a_run_cut_short_goes_on_as_it_would_have(on_cpus: Run) -> None:
    """A tuner that knows the trials and nothing else proposes what the one that saw them all did."""
    assert_goes_on(on_cpus)


@pytest.mark.thorough
def test_so_does_a_run_with_a_sampler_of_optuna(tmp_path: Path) -> None:
    assert_goes_on(tuned(tuned_by(cpu_recipe(FULL), sampler="tpe"), tmp_path, 4))


def assert_goes_on(whole: Run) -> None:
    assert len(whole.trials) > 2
    for number, trial in enumerate(whole.trials[1:], start=1):
        parent = whole.trials[trial.proposal.parent or 0]
        again = Tuner(whole.trials[0].recipe, SEED).propose(parent, trial.proposal.phase, whole.trials[:number])
        assert again is not None
        assert again.recipe.digest() == trial.recipe.digest(), number


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_the_optimum_of_a_small_space_is_reached_within_20_bursts(seed: int, tmp_path: Path) -> None:
    base = _only(FREE, cpu_recipe(FULL | {"use_distributed_optimizer": True}))
    machine = Machine(links=Links(nvlink=0.125), noise=Noise(step=0.002, burst=0.002))
    optimum = max(_rate(recipe, machine) for recipe in _space(base))
    run = Run(base, tmp_path / "run", machine=machine, seed=seed)
    best = throughput(run.tune(20))
    assert best is not None
    assert best >= 0.95 * optimum


def _only(free: tuple[str, ...], recipe: Recipe) -> Recipe:
    """Returns the recipe with every knob frozen except these and the ones that depend on them."""
    return tuned_by(recipe, freeze=tuple(set(KNOBS) - {*free, "recompute_method", "recompute_num_layers"}))


def _space(base: Recipe) -> list[Recipe]:
    """Returns the space without threads: if the cores of a rank are not known, no more of them are used."""
    recipes = [base]
    for micro_batch, recompute, kind in product((1, 2, 4, 8), levels(base), ("alltoall", "allgather")):
        point = {"micro_batch_size": micro_batch, "moe_token_dispatcher_type": kind}
        derived = derive(base, point | recompute)
        if not isinstance(derived, Refusal):
            recipes.append(derived)
    return recipes


def _rate(recipe: Recipe, machine: Machine) -> float:
    """Returns tokens/s without noise; 0 for a recipe that does not fit."""
    return true_throughput(recipe, machine) or 0.0
