"""Tests of the size of a burst, and of what the surrogate makes of bursts of several sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from policies.search.sampler import TrialResult
from policies.surrogate import time
from policies.surrogate.evidence import evidence_of
from policies.surrogate.factors import factors
from policies.surrogate.measured_form import PROXY_PREFIX
from policies.surrogate.surrogate import Surrogate, fit_surrogate
from policies.surrogate.time import proxy_spreads
from policies.trial import Phase, Proposal, Status, Trial
from policies.tuner.sizing import expected_improvement, gpu_hours_of
from policies.tuner.tuner import Tuner
from tests.policies.drawn import gpu_recipe, out_of_memory, trial, tuned_by
from trainer.burst import Outcome
from trainer.estimate.candidates import one, tabulate
from trainer.estimate.memory.estimate import memory_of
from trainer.estimate.time.estimate import time_of
from trainer.fidelity import Fidelity, fidelities_of
from trainer.recipe import Recipe


@cache
def target(ep: int = 8) -> Recipe:
    recipe = gpu_recipe({"expert_model_parallel_size": ep, "pipeline_model_parallel_size": 4})
    wider = recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"nodes": 16})})
    return tuned_by(wider.replace({"global_batch_size": 1024}), proxy_nodes=2)


def ran_at(recipe: Recipe, fidelity: Fidelity | None, *, slower: float = 1.0, given: Outcome | None = None) -> Trial:
    """Returns a burst of the recipe at a size, with the step of the closed form times `slower`."""
    proposal = Proposal(recipe=recipe, parent=None, phase=Phase.FIT, fix="base", fidelity=fidelity)
    step_us = 1e6 * slower * float(time_of(tabulate([proposal.ran])).step_s[0])
    tokens = proposal.ran.training.tokens_per_step
    measured = Outcome(
        step_us=[step_us] * 5,
        peak_gib=[20.0] * proposal.ran.world_size,
        limit_gib=80.0,
        tokens_per_step=tokens,
        ranks=proposal.ran.world_size,
        tokens_per_s_per_gpu=tokens / proposal.ran.world_size / (step_us / 1e6),
    )
    return replace(trial(recipe, given=given or measured), proposal=proposal)


def surrogate(*trials: Trial) -> Surrogate:
    return fit_surrogate(trials, limit_gib=80.0)


SMALLEST = next(fidelity for fidelity, _ in fidelities_of(target(), most_nodes=2))


def test_a_burst_is_sized_by_what_it_shows_per_gpu_hour() -> None:
    found = Tuner(target(), 1).sized(Proposal(recipe=target(), parent=None, phase=Phase.FIT, fix="base"), [])
    assert found.fidelity is not None
    assert found.fidelity.nodes <= 2
    assert found.ran.cluster.nodes == found.fidelity.nodes


def test_a_recipe_without_a_proxy_runs_itself_where_the_launcher_has_its_nodes() -> None:
    wide = target(ep=32)
    assert not list(fidelities_of(wide, most_nodes=2))
    proposal = Proposal(recipe=wide, parent=None, phase=Phase.FIT, fix="base")
    assert Tuner(wide, 1).sized(proposal, []).fidelity is None


def test_without_proxy_nodes_nothing_is_sized() -> None:
    plain = tuned_by(target(), proxy_nodes=None)
    proposal = Proposal(recipe=plain, parent=None, phase=Phase.FIT, fix="base")
    assert Tuner(plain, 1).sized(proposal, []) is proposal


def test_a_proxy_teaches_the_full_run_what_both_share() -> None:
    """A proxy that is a third slower than predicted makes the full run slower, and less uncertain than nothing."""
    table = tabulate([target()])
    before, width = surrogate().time.predict(table)
    after, left = surrogate(ran_at(target(), SMALLEST, slower=1.33)).time.predict(table)
    assert math.log(1.1) < float(after[0] - before[0]) < math.log(1.5)
    assert float(left[0]) < 0.7 * float(width[0])


def test_the_full_run_stays_less_certain_than_by_a_burst_of_its_own() -> None:
    table = tabulate([target()])
    _, by_proxy = surrogate(ran_at(target(), SMALLEST)).time.predict(table)
    _, by_itself = surrogate(ran_at(target(), None)).time.predict(table)
    assert float(by_itself[0]) < float(by_proxy[0])


@pytest.mark.parametrize("together", [1, time.MAX_ROWS_PER_CALL])
def test_bursts_of_two_sizes_are_fitted_together(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks it also with one row per call, so that rows of proxies are evaluated without other rows."""
    monkeypatch.setattr(time, "MAX_ROWS_PER_CALL", together)
    both = surrogate(ran_at(target(), None, slower=1.2), ran_at(target(), SMALLEST, slower=1.2)).time
    closed = float(time_of(tabulate([target()])).step_s[0])
    assert len(both.measured) == 2
    assert math.exp(float(both.predict(tabulate([target()]))[0][0])) == pytest.approx(1.2 * closed, rel=0.05)


def test_every_move_of_proxies_is_of_a_factor() -> None:
    names = {factor.name for factor in factors()}
    assert {name.removeprefix(PROXY_PREFIX) for name in proxy_spreads()} <= names


def test_a_proxy_out_of_memory_is_evidence_of_its_own_recipe() -> None:
    ran_out = replace(ran_at(target(), SMALLEST, given=out_of_memory(target())), status=Status.OOM)
    (found,) = evidence_of([ran_out])
    assert found.out_of_memory
    assert found.is_proxy
    assert found.recipe == ran_out.ran
    limit_gib = float(memory_of(one(found.recipe)).peak_gib[0])  # the proxy needs about as much as there is
    before, after = (fit_surrogate(trials, limit_gib=limit_gib).memory for trials in ([], [ran_out]))
    table = tabulate([found.recipe])
    assert float(after.fits(table)[0]) < float(before.fits(table)[0])


def test_the_choice_is_the_fastest_at_full_size_and_optuna_gets_its_prediction_there() -> None:
    slow, fast = target(), target().replace({"moe_permute_fusion": True})
    trials = [ran_at(slow, SMALLEST), replace(ran_at(fast, SMALLEST, slower=0.8), number=1)]
    tuner = Tuner(slow, 1)
    choice = tuner.choice(trials)
    assert choice is trials[1]
    found = tuner.at_full_size(trials[1], trials[0], trials)
    assert found.gain is not None
    assert found.gain > 0.05
    decision = tuner._decide(trials[0], trials)
    result = decision._result_of(trials[1])
    tokens = fast.training.tokens_per_step / fast.world_size
    step_s = math.exp(float(tuner.surrogate(trials).time.predict(tabulate([fast]))[0][0]))
    assert result.rate == pytest.approx(tokens / step_s)
    full = replace(ran_at(slow, None), number=2)
    assert decision._result_of(full) == TrialResult(rate=full.outcomes[0].tokens_per_s_per_gpu, excess=20.0 / 80.0 - 1)


def test_gpu_hours_count_the_start_of_ranks_unless_they_wait() -> None:
    tuner = Tuner(target(), 1)
    fidelity, proxy = next(fidelities_of(target(), most_nodes=2))
    waiting = ran_at(target(), fidelity)
    cold = gpu_hours_of(proxy, tuner.knowledge(waiting, []))
    warm = gpu_hours_of(proxy, tuner.knowledge(waiting, [waiting]))
    assert warm < cold


def test_the_expected_improvement_of_a_certain_loss_is_nothing() -> None:
    assert expected_improvement(-0.1, 0.0) == 0.0
    assert expected_improvement(0.1, 0.0) == 0.1
    assert expected_improvement(0.0, 0.1) == pytest.approx(0.1 / math.sqrt(2 * math.pi))
