"""Single moves around the incumbent and pairs of them: legal, new, and distinguished from it by the surrogate."""

from __future__ import annotations

from collections import Counter
from functools import cache

from policies.candidates.neighbours import DIMENSIONS, PAIRED_NEIGHBOURS, Move, modelled_moves, moves, neighbours, pairs
from policies.search.avoid import Avoid
from policies.surrogate.surrogate import Surrogate, fit_surrogate
from tests.policies.drawn import cpu_recipe, failed, gpu_recipe, trial, tuned_by
from tests.rows import filled
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import check

HYBRIDEP = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
BASE = gpu_recipe(HYBRIDEP | {"manual_gc": True, "manual_gc_interval": 100, "overlap_grad_reduce": True})


@cache
def surrogate() -> Surrogate:
    return fit_surrogate([trial(BASE)], limit_gib=79.0)


def test_moves_are_legal_each_recipe_once_a_decision_and_leave_alone_what_is_frozen() -> None:
    frozen = ("moe_hybridep_num_sms", "expert_model_parallel_size")
    for base in (cpu_recipe(), tuned_by(BASE, freeze=frozen)):
        found = list(moves(base))
        assert [move.dimension for move in found for each in check(move.recipe) if each.kind == "error"] == []
        assert max(Counter((move.dimension, move.recipe.digest()) for move in found).values()) == 1
        assert base.digest() not in {move.recipe.digest() for move in found}
        moved = {knob for move in found for knob in base.diff(move.recipe)}
        assert not moved & set(base.tune.freeze)
    assert {"moe_hybridep_num_sms_preprocessing", "CUDA_DEVICE_MAX_CONNECTIONS", "bucket_size"} <= moved


def test_a_knob_of_the_table_is_tried_alone_or_with_others_or_not_at_all() -> None:
    decided = {knob for dimension in DIMENSIONS.values() for knob in dimension.knobs}
    for knob in filled(KNOBS.values()):
        assert all(knob.domain.problem(value) is None for value in knob.tries), knob.name
        assert len(set(knob.tries)) == len(knob.tries) != 1, knob.name
        if knob.tries:
            assert knob.name in decided
            assert not knob.together, knob.name
    for name, dimension in DIMENSIONS.items():
        assert dimension.knobs == (name,) or name not in KNOBS, name
        assert all(KNOBS[knob].tries or KNOBS[knob].together for knob in dimension.knobs), name


def test_moves_that_the_surrogate_cannot_tell_from_the_incumbent_or_that_give_up_something_are_left_out() -> None:
    found = {move.dimension for move in modelled_moves(BASE, list(moves(BASE)), surrogate())}
    assert {"EP", "micro batch", "recompute", "dispatcher"} <= found
    assert not found & {"NVTE_ALLOW_NONDETERMINISTIC_ALGO", "moe_hybridep_num_sms", "bucket_size"}
    only_off = [move for move in moves(BASE) if move.changes == {"manual_gc": False}]
    assert modelled_moves(BASE, only_off, surrogate()) == []


def test_neighbours_are_scored_and_none_where_there_are_none() -> None:
    near, avoid = list(moves(BASE)), Avoid([trial(BASE)])
    group = neighbours(BASE, near, surrogate(), avoid, min_fit=0.5)
    assert group is not None
    assert group.table.count == len(modelled_moves(BASE, near, surrogate()))
    assert neighbours(BASE, [], surrogate(), avoid, min_fit=0.5) is None


def test_pairs_join_two_decisions_and_leave_out_what_was_tried_or_refused() -> None:
    near = list(moves(BASE))
    refused = failed(BASE.replace({"moe_permute_fusion": True}), "AssertionError: moe_permute_fusion is not built")
    tried = Avoid([trial(BASE), refused])
    group = pairs(BASE, near, surrogate(), tried, min_fit=0.5)
    assert group is not None
    assert 0 < group.table.count <= PAIRED_NEIGHBOURS * (PAIRED_NEIGHBOURS - 1) // 2
    found = [group.recipe(row) for row in range(group.table.count)]
    for recipe in found:
        assert recipe is not None
        assert [each for each in check(recipe) if each.kind == "error"] == []
        assert not recipe.knob("moe_permute_fusion")
        assert not tried.excludes(recipe)
    singles = {move.recipe.digest() for move in near}
    assert any(recipe is not None and recipe.digest() not in singles for recipe in found)
    again = Avoid([trial(BASE), trial(found[0], number=1)]) if found[0] is not None else tried
    without = pairs(BASE, near, surrogate(), again, min_fit=0.5)
    assert without is not None
    assert found[0] not in [without.recipe(row) for row in range(without.table.count)]


def test_one_move_has_no_pair() -> None:
    one: list[Move] = [move for move in moves(BASE) if move.dimension == "micro batch"][:1]
    assert pairs(BASE, one, surrogate(), Avoid([]), min_fit=0.5) is None


def test_groups_of_twice_as_many_micro_batches_are_a_move_of_chunks() -> None:
    chunks = {"pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 2, "overlap_p2p_comm": True}
    chunks["expert_model_parallel_size"] = 4
    knob = "microbatch_group_size_per_vp_stage"
    found = [move for move in moves(gpu_recipe(chunks)) if move.dimension == knob]
    assert [move.changes for move in filled(found)] == [{knob: 8}]
    assert knob in KNOBS  # so that it is offered as a single setting where its price is nothing
