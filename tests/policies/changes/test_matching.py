"""Every fix is recognised in its own change; the parts of a change move every knob that differs, each once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from policies.candidates.neighbours import moves
from policies.changes.legality import Refusal, derive
from policies.changes.matching import FOLLOWERS
from policies.fixes import FIXES
from policies.trial import PHASES
from policies.tuner.decomposition import PRECEDENCE, members
from tests.policies.test_fixes import NEEDS_MORE, RECIPES, applying
from tests.rows import filled
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

# A fix under another's name, with its reason: the narrower name says more
SAME_CHANGE = {
    ("selective_recompute", "full_recompute"): "the last rung is all of it",
    ("more_expert_parallel", "expert_parallel_for_tensor"): "where the experts' tensor parallelism shrinks with it",
    ("more_expert_parallel", "expert_parallel_in_domain"): "where EP comes to lie in one NVLink domain",
    ("less_expert_parallel", "expert_parallel_in_domain"): "likewise",
    ("micro_batch_down", "drop_recompute"): "a smaller micro batch that pays for less recompute",
    ("interleaved_pipeline", "more_pipeline_parallel"): "where PP grows as well",
}


def changes_of_fixes(recipe: Recipe) -> list[tuple[str, Recipe]]:
    """Returns every legal recipe that a fix makes of one, with the fix's name."""
    made = [(fix.name, derive(recipe, changes)) for fix, options in applying(recipe) for changes in options]
    return [(name, each) for name, each in made if not isinstance(each, Refusal)]


def test_every_fix_is_recognised_in_each_of_its_changes() -> None:
    wrong: list[tuple[str, str, object, object]] = []
    seen = set()
    for label, recipe in RECIPES.items():
        for name, after in changes_of_fixes(recipe):
            seen.add(name)
            found = [member.name for member in members(recipe, after)]
            if not FIXES[name].matches(recipe, after):
                wrong.append((label, name, "does not match", recipe.diff(after)))
            elif name not in found and not any((name, other) in SAME_CHANGE for other in found):
                wrong.append((label, name, found, recipe.diff(after)))
    assert wrong == []
    assert set(FIXES) - seen <= NEEDS_MORE


def test_a_fix_that_is_taken_back_is_not_recognised() -> None:
    """A matcher does not match the reverse of its change, except for knobs that only move."""
    both_ways = {"dispatcher", "threads", "even_stages", "even_experts", "expert_parallel_in_domain"}
    wrong: list[object] = []
    for label, recipe in RECIPES.items():
        for name, after in changes_of_fixes(recipe):
            if name not in both_ways and FIXES[name].matches(after, recipe):
                wrong.append((label, name, recipe.diff(after)))
    assert wrong == []


def test_a_recipe_compared_with_itself_has_no_members() -> None:
    for recipe in filled(RECIPES.values()):
        assert members(recipe, recipe) == []
        assert not any(fix.matches(recipe, recipe) for fix in FIXES.values())


def test_members_move_every_knob_that_differs_each_once() -> None:
    wrong = []
    for label, recipe in RECIPES.items():
        around = [recipe, *(after for _, after in changes_of_fixes(recipe)), *(move.recipe for move in moves(recipe))]
        for before, after in [*pairwise(around), *((recipe, each) for each in around)]:
            moved = Counter(knob for member in members(before, after) for knob in member.knobs)
            if moved != Counter(list(before.diff(after))):
                wrong.append((label, before.diff(after), members(before, after)))
    assert wrong == []


def test_precedence_names_fixes_once_and_settles_every_shared_knob() -> None:
    """Two fixes of one knob that can match at once are both in the order, or the order of names would decide."""
    assert set(PRECEDENCE) <= set(FIXES)
    assert len(set(PRECEDENCE)) == len(PRECEDENCE)
    unsettled = []
    for label, recipe in RECIPES.items():
        for name, after in changes_of_fixes(recipe):
            matching = [fix for fix in FIXES.values() if fix.matches(recipe, after)]
            for fix in matching:
                shared = [o.name for o in matching if o is not fix and set(o.knobs) & set(fix.knobs)]
                if shared and fix.name not in PRECEDENCE:
                    unsettled.append((label, name, fix.name, shared))
    assert unsettled == []


def test_followers_are_knobs_and_follow_another_one() -> None:
    for knob, followers in filled(FOLLOWERS.items()):
        assert knob in KNOBS
        assert set(followers) <= set(KNOBS), knob


def test_every_fix_names_phases_of_the_tuner() -> None:
    assert all(set(fix.phases) <= set(PHASES) for fix in filled(FIXES.values()))
