"""The policy on hand-drawn evidence: which fix for which wall, and what it may never propose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from policies.policy import Policy

from analyzers.diagnosis import Wall
from policies.fixes import FIXES
from policies.trial import Phase, Proposal, Trial, Verdict
from policies.tuner.phases import PHASES, PLANS
from tests.policies.drawn import STEP_US, analysis, cpu_recipe, gpu_recipe, out_of_memory, outcome, trial
from trainer.recipe import Recipe
from trainer.recipe.rules import check
from trainer.recipe.rules.examples import FULL

EP = {"ep_dispatch": 0.31 * STEP_US, "ep_combine": 0.12 * STEP_US}
Walls = Mapping[Wall, Mapping[str, float]]


def small(recipe: Recipe) -> float:
    """Memory that grows with the micro batch and shrinks with recompute; always well below the limit of a GPU."""
    kept = {None: 1.0, "selective": 0.6, "full": 0.2}[recipe.knob("recompute_granularity")]
    return 0.2 + 0.3 * kept * recipe.training.micro_batch_size


def policy(base: Recipe, seed: int = 0) -> Policy:
    return Policy(base, seed, estimate=small)


def profiled(recipe: Recipe, walls: Walls, peak_gib: float = 0.5) -> Trial:
    return trial(recipe, given=outcome(recipe, peak_gib=peak_gib), seen=analysis(walls))


def proposed(best: Trial, phase: Phase = Phase.PROFILE, trials: list[Trial] | None = None) -> Proposal:
    proposal = policy(best.recipe).propose(best, phase, trials or [best])
    assert proposal is not None
    return proposal


@pytest.mark.parametrize(
    ("recipe", "walls", "fixes"),
    [
        (gpu_recipe(), {Wall.COMMUNICATION: EP}, {"overlap_expert_communication", "dispatcher"}),
        (cpu_recipe(), {Wall.COMMUNICATION: EP}, {"dispatcher", "less_expert_parallel"}),
        (cpu_recipe(FULL), {Wall.MEMORY: {"recompute": 40_000.0}}, {"drop_recompute"}),
        (gpu_recipe(), {Wall.HOST: {"launching": 60_000.0}}, {"cuda_graphs", "micro_batch_up"}),
        (gpu_recipe(), {Wall.HOST: {"garbage_collection": 30_000.0}}, {"manual_gc", "cpu_affinity"}),
        (gpu_recipe(), {Wall.COMMUNICATION: {"dp": 30_000.0}}, {"overlap_param_gather"}),
        (gpu_recipe(allow="numerics-changing"), {Wall.COMPUTE: {"below_attainable": 60_000.0}}, {"fp8"}),
        (cpu_recipe(), {Wall.COMPUTE: {"below_attainable": 60_000.0}}, {"threads", "micro_batch_up", "grouped_gemm"}),
    ],
    ids=["EP", "EP on CPUs", "recompute", "launches", "garbage", "DP", "compute", "compute on CPUs"],
)  # fmt: skip
def test_the_fix_matches_the_wall(recipe: Recipe, walls: Walls, fixes: set[str]) -> None:
    proposal = proposed(profiled(recipe, walls))
    assert proposal.fix in fixes


def test_the_words_name_the_wall_its_number_and_the_fix() -> None:
    because = proposed(profiled(gpu_recipe(), {Wall.COMMUNICATION: EP})).because
    assert "EP dispatch is exposed for 31 % of the step (43.4 of 140 ms)" in because
    assert "EP communication overlap" in because


def test_the_predicted_gain_never_exceeds_the_bound() -> None:
    walls = {Wall.COMMUNICATION: EP, Wall.HOST: {"launching": 50_000.0}, Wall.COMPUTE: {"below_attainable": 20_000.0}}
    best = profiled(gpu_recipe(), walls)
    seen, trials = set(), [best]
    while proposal := policy(best.recipe).propose(best, Phase.PROFILE, trials):
        assert proposal.predicted.gain is not None
        assert proposal.predicted.gain_bound is not None
        assert proposal.predicted.gain <= proposal.predicted.gain_bound
        seen.add(proposal.fix)
        trials.append(rejected(proposal, best, len(trials)))
    assert len(seen) >= 5


def test_a_wall_within_the_noise_is_left_alone() -> None:
    best = profiled(gpu_recipe(), {Wall.COMMUNICATION: {"dp": 0.01 * STEP_US}})
    assert policy(best.recipe).propose(best, Phase.PROFILE, [best]) is None


def test_without_a_trace_the_profile_phase_is_silent() -> None:
    best = trial(gpu_recipe())
    assert policy(best.recipe).propose(best, Phase.PROFILE, [best]) is None


def test_recompute_is_dropped_only_as_far_as_memory_allows() -> None:
    recipe = cpu_recipe(FULL | {"micro_batch_size": 8})  # none would need 2.6 of 2 GiB, selective 1.64
    best = profiled(recipe, {Wall.MEMORY: {"recompute": 40_000.0}}, peak_gib=0.68)
    proposal = proposed(best)
    assert proposal.fix == "drop_recompute"
    assert proposal.recipe.knob("recompute_granularity") == "selective"


def test_out_of_memory_is_cured_by_the_cheapest_change_that_fits() -> None:
    recipe = cpu_recipe({"micro_batch_size": 8})
    best = trial(recipe, given=out_of_memory(recipe), verdict=None)
    proposal = proposed(best, Phase.FIT)
    assert proposal.recipe.knob("recompute_granularity") == "selective"
    assert proposal.recipe.training.micro_batch_size == 8
    assert "ran out of memory in forward on rank 1" in proposal.because


def test_full_recompute_comes_after_selective_and_smaller_micro_batches() -> None:
    recipe = cpu_recipe({"micro_batch_size": 8})
    trials = [trial(recipe, given=out_of_memory(recipe), verdict=None)]
    granularities = []
    for number in range(1, 8):
        proposal = policy(recipe).propose(trials[0], Phase.FIT, trials)
        if proposal is None:
            break
        granularities.append(proposal.recipe.knob("recompute_granularity"))
        trials.append(dead(proposal, trials[0], number))
    assert granularities[0] == "selective"
    assert "full" not in granularities[:2]


def test_a_recipe_that_fits_needs_no_fit() -> None:
    best = trial(cpu_recipe())
    assert policy(best.recipe).propose(best, Phase.FIT, [best]) is None


def test_nothing_that_fits_is_admitted_in_words() -> None:
    recipe = cpu_recipe({"micro_batch_size": 1})
    hopeless = Policy(recipe, 0, estimate=lambda _: 50.0)
    trials = [trial(recipe, given=out_of_memory(recipe), verdict=None)]
    while proposal := hopeless.propose(trials[0], Phase.FIT, trials):
        trials.append(dead(proposal, trials[0], len(trials)))
        assert len(trials) < 8
    assert "no legal recipe was found that fits" in hopeless.why_stopped(trials[0], trials)


def test_tensor_parallelism_is_given_back_when_memory_allows() -> None:
    recipe = gpu_recipe({"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1})
    best = profiled(recipe, {Wall.COMMUNICATION: {"tp": 30_000.0}})
    proposal = proposed(best, Phase.SCALE)
    assert proposal.fix == "less_tensor_parallel"
    assert proposal.recipe.data_parallel_size == 16


def test_frozen_knobs_stay_still_in_every_phase() -> None:
    walls = {Wall.COMMUNICATION: EP, Wall.HOST: {"launching": 50_000.0}, Wall.MEMORY: {"recompute": 20_000.0}}
    frozen = ("micro_batch_size", "recompute_granularity", "expert_model_parallel_size", "global_batch_size")
    best = profiled(gpu_recipe(FULL, freeze=frozen), walls)
    for phase in PHASES:
        for proposal in everything_proposed(best, phase):
            assert not set(best.recipe.diff(proposal.recipe)) & set(frozen)


@pytest.mark.parametrize("phase", [Phase.SCALE, Phase.PROFILE, Phase.RETUNE])
@pytest.mark.parametrize("recipe", [gpu_recipe(FULL), cpu_recipe(FULL)], ids=["gpu", "cpu"])
def test_nothing_illegal_and_nothing_twice(recipe: Recipe, phase: Phase) -> None:
    walls = {
        Wall.COMMUNICATION: EP | {"dp": 20_000.0},
        Wall.HOST: {"launching": 50_000.0},
        Wall.MEMORY: {"recompute": 20_000.0},
        Wall.COMPUTE: {"below_attainable": 20_000.0},
    }
    best = profiled(recipe, walls)
    proposals = everything_proposed(best, phase)
    digests = [best.recipe.digest(), *(p.recipe.digest() for p in proposals)]
    assert len(set(digests)) == len(digests)
    for proposal in proposals:
        assert [f for f in check(proposal.recipe) if f.kind == "error"] == []
        assert proposal.because
        assert proposal.phase is phase
        assert proposal.fix in FIXES or proposal.fix == "search"


def test_a_resumed_study_proposes_the_same() -> None:
    best = profiled(cpu_recipe(), {Wall.COMPUTE: {"below_attainable": 60_000.0}})
    trials = [best]
    for _ in range(6):
        first = policy(best.recipe, seed=3).propose(best, Phase.RETUNE, trials)
        again = policy(best.recipe, seed=3).propose(best, Phase.RETUNE, list(trials))
        assert first == again
        if first is None:
            break
        trials.append(rejected(first, best, len(trials)))


def test_retune_ends_when_patience_does() -> None:
    best = profiled(cpu_recipe(patience=3), {Wall.COMPUTE: {"below_attainable": 60_000.0}})
    assert len(everything_proposed(best, Phase.RETUNE)) == 3
    trials = [best]
    while proposal := policy(best.recipe).propose(best, Phase.RETUNE, trials):
        trials.append(rejected(proposal, best, len(trials)))
    assert "3 settings in a row" in policy(best.recipe).why_stopped(best, trials)


def test_a_change_that_did_not_pay_is_not_tried_again_from_a_new_parent() -> None:
    walls = {Wall.COMMUNICATION: {"dp": 30_000.0}, Wall.HOST: {"launching": 20_000.0}}
    first = profiled(gpu_recipe(), walls)
    failed = rejected(proposed(first), first, 1)
    assert failed.proposal.fix == "overlap_param_gather"
    better = trial(
        gpu_recipe({"micro_batch_size": 2}),
        number=2,
        parent=first,
        given=outcome(gpu_recipe(), peak_gib=0.5),
        seen=analysis(walls),
    )
    assert proposed(better, trials=[first, failed, better]).fix != "overlap_param_gather"


def test_rejected_ideas_have_reasons() -> None:
    best = profiled(cpu_recipe(), {Wall.COMMUNICATION: EP})
    ideas = {idea.fix: idea.why_not for idea in policy(best.recipe).rejected_ideas(best, [best])}
    assert ideas["drop_recompute"] == "nothing is recomputed"
    assert "GPU" in ideas["fp8"]
    assert all(ideas.values())


def test_every_phase_has_a_plan() -> None:
    assert PHASES == (Phase.FIT, Phase.SCALE, Phase.PROFILE, Phase.RETUNE)
    assert all(plan.asks and plan.ends for plan in PLANS)


def everything_proposed(best: Trial, phase: Phase) -> list[Proposal]:
    """Proposals until the phase ends, when each is rejected."""
    trials, proposals = [best], []
    while proposal := policy(best.recipe).propose(best, phase, trials):
        proposals.append(proposal)
        trials.append(rejected(proposal, best, len(trials)))
        assert len(trials) < 60
    return proposals


def rejected(proposal: Proposal, parent: Trial, number: int) -> Trial:
    return _ran(proposal, parent, number, {"given": outcome(proposal.recipe, tokens_per_s=900.0, peak_gib=0.5)})


def dead(proposal: Proposal, parent: Trial, number: int) -> Trial:
    return _ran(proposal, parent, number, {"given": out_of_memory(proposal.recipe)})


def _ran(proposal: Proposal, parent: Trial, number: int, given: dict[str, Any]) -> Trial:
    return trial(
        proposal.recipe,
        number=number,
        parent=parent,
        phase=proposal.phase,
        fix=proposal.fix,
        verdict=Verdict.REJECTED,
        **given,
    )


def test_a_knob_is_not_moved_past_where_it_lost() -> None:
    best = profiled(cpu_recipe(), {Wall.COMPUTE: {"below_attainable": 60_000.0}})
    lost = trial(
        cpu_recipe({"threads_per_rank": 2}),
        number=1,
        parent=best,
        phase=Phase.PROFILE,
        fix="threads",
        given=outcome(best.recipe, tokens_per_s=500.0),
        verdict=Verdict.REJECTED,
    )
    trials = [best, lost]
    for phase in (Phase.PROFILE, Phase.RETUNE):
        while proposal := policy(best.recipe).propose(best, phase, trials):
            assert best.recipe.diff(proposal.recipe).get("threads_per_rank", (1, 1))[1] == 1
            trials.append(rejected(proposal, best, len(trials)))


def test_on_a_machine_that_tells_nothing_a_change_may_be_tried_again() -> None:
    """Repeats 30 % apart from their middle: a tenth less is no evidence against dropping recompute."""
    walls = {Wall.MEMORY: {"recompute": 50_000.0}}
    base = cpu_recipe(FULL)
    noisy = replace(
        profiled(base, walls),
        outcomes=tuple(outcome(base, tokens_per_s=rate, peak_gib=0.5) for rate in (700.0, 1300.0)),
    )
    first = proposed(noisy)
    unclear = rejected(first, noisy, 1)
    better = trial(
        cpu_recipe(FULL | {"micro_batch_size": 2}),
        number=2,
        parent=noisy,
        given=outcome(base, tokens_per_s=1500.0, peak_gib=0.5),
        seen=analysis(walls),
    )
    assert first.fix == proposed(better, trials=[noisy, unclear, better]).fix == "drop_recompute"
