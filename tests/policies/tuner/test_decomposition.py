"""A candidate as named fixes: shares that add up, the smallest change with the gain, and what it keeps."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest

from analyzers.diagnosis import Wall
from policies.candidates.candidate import Candidate, Claimed, PredictionSource, group_of
from policies.candidates.knowledge import Knowledge
from policies.fixes import FIXES
from policies.search.acquisition import score
from policies.search.avoid import Avoid
from policies.tuner.decomposition import (
    REDUCIBLE_LOG_GAIN,
    Member,
    decompose,
    fix_of,
    members,
    smallest,
    wall_of,
    without,
)
from tests.policies.drawn import STEP_US, analysis, gpu_recipe, knowledge, out_of_memory, outcome, trial
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe
from trainer.recipe.rules.examples import FULL

WALLS = {Wall.COMMUNICATION: {"ep_dispatch": 0.3 * STEP_US}, Wall.MEMORY: {"recompute": 0.2 * STEP_US}}
SLOW = gpu_recipe(FULL)
FASTER: dict[str, Any] = {
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "expert_model_parallel_size": 8,
    "moe_permute_fusion": True,
}
TP4 = {"tensor_model_parallel_size": 4, "sequence_parallel": True}


@cache
def slow_knowledge(*, fits: bool = True) -> Knowledge:
    given = outcome(SLOW, peak_gib=30.0) if fits else out_of_memory(SLOW)
    return knowledge(trial(SLOW, given=given, seen=analysis(WALLS)))


def candidate(recipe: Recipe, known: Knowledge | None = None) -> Candidate:
    known = known or slow_knowledge()
    table, now = tabulate([recipe]), known.surrogate.time.closed_form(tabulate([known.recipe]))
    scores = score(table, now, known.surrogate, known.avoid, min_fit=known.min_fit)
    return group_of([recipe], table, scores).candidate(0, recipe, runs=True)


def test_shares_and_interaction_add_up_to_the_predicted_gain() -> None:
    for changes in (FASTER, FASTER | {"micro_batch_size": 2}, {"expert_model_parallel_size": 8}):
        whole = candidate(SLOW.replace(changes))
        parts = decompose(whole, slow_knowledge())
        assert whole.log_gain is not None
        assert parts.interaction is not None
        given = [share.predicted_share for share in parts.shares if share.predicted_share is not None]
        assert sum(given) + parts.interaction == pytest.approx(math.expm1(whole.log_gain), abs=1e-9)
        assert {knob for share in parts.shares for knob in share.knobs} == set(SLOW.diff(whole.recipe))
        assert given == sorted(given, reverse=True)


def test_the_only_member_has_the_whole_gain_and_no_interaction() -> None:
    whole = candidate(SLOW.replace({"expert_model_parallel_size": 8}))
    parts = decompose(whole, slow_knowledge())
    assert len(parts.shares) == 1
    assert whole.log_gain is not None
    assert parts.shares[0].predicted_share == pytest.approx(math.expm1(whole.log_gain))
    assert parts.interaction == pytest.approx(0.0, abs=1e-12)


def test_expert_tensor_parallel_goes_along_with_the_degree_that_moved() -> None:
    after = SLOW.replace(TP4 | {"expert_tensor_parallel_size": 2})
    names = {member.name: set(member.knobs) for member in members(SLOW, after)}
    assert names == {"more_tensor_parallel": {*TP4, "expert_tensor_parallel_size"}}


def test_the_largest_share_names_the_proposal_and_each_has_its_wall() -> None:
    parts = decompose(candidate(SLOW.replace(FASTER)), slow_knowledge())
    walls = {share.fix: share.wall for share in parts.shares}
    assert fix_of(parts.shares) == parts.shares[0].fix == "drop_recompute"
    assert walls["drop_recompute"] is Wall.MEMORY
    assert set(walls) == {"drop_recompute", "expert_parallel_in_domain", "permute_fusion"}
    assert fix_of(()) == "base"


def test_a_member_whose_removal_is_illegal_has_what_it_brings_by_itself() -> None:
    """EP overlap needs EP: the overlap can be taken out, what it needs cannot."""
    base = gpu_recipe({"expert_model_parallel_size": 1})
    after = base.replace({"expert_model_parallel_size": 8, "overlap_moe_expert_parallel_comm": True})
    known = knowledge(trial(base, given=outcome(base, peak_gib=30.0), seen=analysis(WALLS)))
    found = members(base, after)
    illegal = [member for member in found if without(base, after, member) is None]
    assert [member.name for member in illegal] == ["more_expert_parallel"]
    parts = decompose(candidate(after, known), known)
    shares = {share.fix: share.predicted_share for share in parts.shares}
    by_itself = candidate(base.replace({"expert_model_parallel_size": 8}), known)
    assert by_itself.log_gain is not None
    assert shares["more_expert_parallel"] == pytest.approx(math.expm1(by_itself.log_gain))
    assert shares["overlap_expert_communication"] is not None


def test_taking_out_the_only_member_gives_the_recipe_before() -> None:
    after = SLOW.replace({"expert_model_parallel_size": 8})
    (member,) = members(SLOW, after)
    assert without(SLOW, after, member) == SLOW


def test_companions_are_taken_out_with_their_fix() -> None:
    after = SLOW.replace(TP4 | {"micro_batch_size": 2})
    member = next(each for each in members(SLOW, after) if each.name == "more_tensor_parallel")
    assert set(member.knobs) == {"tensor_model_parallel_size", "sequence_parallel"}
    rest = without(SLOW, after, member)
    assert rest is not None
    assert list(SLOW.diff(rest)) == ["micro_batch_size"]


def test_where_the_incumbent_does_not_fit_members_say_what_they_free() -> None:
    out = slow_knowledge(fits=False)
    after = gpu_recipe({"micro_batch_size": 4})
    big = knowledge(trial(after, given=out_of_memory(after)), limit_gib=79.0)
    fitted = after.replace({"micro_batch_size": 1, "moe_router_fusion": True})
    whole = Candidate(
        recipe=fitted,
        log_step=0.0,
        deviation=0.0,
        noise=0.0,
        log_gain=None,
        fits_probability=0.9,
        expected_improvement=0.0,
        score=0.0,
    )
    shares = {share.fix: share.frees_gib for share in decompose(whole, big).shares}
    assert out.needs_room
    assert fix_of(decompose(whole, big).shares) == "micro_batch_down"
    assert shares["micro_batch_down"] is not None
    assert shares["micro_batch_down"] > 1.0
    assert shares["router_fusion"] is not None
    assert abs(shares["router_fusion"]) < 0.1
    fits = decompose(candidate(SLOW.replace(FASTER)), slow_knowledge())
    assert all(share.frees_gib is None for share in fits.shares)


def test_a_useless_member_is_dropped_and_the_loss_stays_small() -> None:
    useless = {"moe_hybridep_num_sms": 8, "bucket_size": 80_000_000}  # no HybridEP: nothing acts
    full = candidate(SLOW.replace(FASTER | useless))
    reduced = smallest(full, slow_knowledge())
    assert not set(SLOW.diff(reduced.recipe)) & set(useless)
    assert reduced.recipe.knob("recompute_granularity") is None
    assert reduced.log_step - full.log_step < REDUCIBLE_LOG_GAIN
    assert smallest(reduced, slow_knowledge()) == reduced


def test_members_that_each_cost_less_than_the_limit_do_not_all_go() -> None:
    """The limit is on the sum of the losses of all members taken out."""
    small = {"moe_router_fusion": True, "moe_permute_fusion": True, "overlap_param_gather": True}
    full = candidate(SLOW.replace(FASTER | small | {"overlap_grad_reduce": True}))
    reduced = smallest(full, slow_knowledge())
    assert reduced.log_step - full.log_step < REDUCIBLE_LOG_GAIN
    assert set(SLOW.diff(reduced.recipe)) <= set(SLOW.diff(full.recipe))


def test_what_makes_it_fit_is_kept() -> None:
    """Recompute that costs time stays where the larger micro batch would not fit without it."""
    base = gpu_recipe({"micro_batch_size": 1})
    known = knowledge(trial(base, given=outcome(base, peak_gib=60.0), seen=analysis(WALLS)), limit_gib=79.0)
    after = base.replace(FULL | {"micro_batch_size": 8})
    full = candidate(after, known)
    alone = candidate(base.replace({"micro_batch_size": 8}), known)
    assert alone.fits_probability < 0.5 < full.fits_probability
    reduced = smallest(full, known)
    assert reduced.recipe.knob("recompute_granularity") == "full" or reduced.recipe.training.micro_batch_size == 1
    assert reduced.fits_probability >= min(full.fits_probability, 0.9)


def test_what_gained_elsewhere_and_what_is_free_is_kept() -> None:
    free = {"manual_gc": True, "manual_gc_interval": 100, "cpu_affinity": "spread"}
    reduced = smallest(candidate(SLOW.replace(FASTER | free)), slow_knowledge())
    assert set(free) <= set(SLOW.diff(reduced.recipe))


def test_a_smaller_change_that_was_tried_is_not_proposed_again() -> None:
    full = candidate(SLOW.replace(FASTER | {"bucket_size": 80_000_000}))
    reduced = smallest(full, slow_knowledge())
    assert reduced.recipe.knob("bucket_size") == SLOW.knob("bucket_size")
    tried = trial(reduced.recipe, number=1, parent=slow_knowledge().incumbent)
    known = Knowledge(
        given=slow_knowledge().given,
        incumbent=slow_knowledge().incumbent,
        trials=(slow_knowledge().incumbent, tried),
        situation=slow_knowledge().situation,
        surrogate=slow_knowledge().surrogate,
        avoid=Avoid((slow_knowledge().incumbent, tried)),
    )
    assert smallest(full, known).recipe.digest() != reduced.recipe.digest()


def test_a_candidate_by_a_claim_is_left_whole_and_named_by_its_fix() -> None:
    fix = FIXES["overlap_grad_reduce"]
    claimed = Claimed(fix=fix, wall=Wall.COMMUNICATION, claimed_us=1_000.0, bound=0.1)
    whole = Candidate(
        recipe=SLOW.replace({"overlap_grad_reduce": True, "moe_router_fusion": True}),
        source=PredictionSource.TRACE,
        log_step=-0.05,
        deviation=0.0,
        noise=0.0,
        log_gain=0.05,
        fits_probability=1.0,
        expected_improvement=0.05,
        score=0.05,
        claimed=claimed,
    )
    assert smallest(whole, slow_knowledge()) is whole
    parts = decompose(whole, slow_knowledge())
    assert fix_of(parts.shares) == fix.name
    assert parts.shares[0].predicted_share == pytest.approx(math.expm1(0.05))
    assert parts.shares[1].predicted_share is None


def test_the_wall_of_a_knob_without_a_fix_is_one_that_it_acts_on() -> None:
    assert wall_of(Member(name="bucket_size", knobs=("bucket_size",)), slow_knowledge().situation) is Wall.COMMUNICATION
    assert (
        wall_of(Member(name="drop_recompute", knobs=("recompute_granularity",)), slow_knowledge().situation)
        is Wall.MEMORY
    )
