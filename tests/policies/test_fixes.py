"""What every registered fix must hold to, by being registered."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from analyzers.diagnosis import Wall
from policies.changes.fix import Fix, gain_of
from policies.changes.legality import Refusal, derive, numerics_of
from policies.fixes import FIXES
from policies.situation import Situation
from policies.tuner.phases import PLANS
from tests.policies.drawn import analysis, cpu_recipe, gpu_recipe, outcome
from trainer.recipe import Recipe, load_recipe, packaged_examples
from trainer.recipe.knobs import KNOBS, NUMERICS
from trainer.recipe.rules import check
from trainer.recipe.rules.examples import FULL, TP2

RECIPES: dict[str, Recipe] = {
    "cpu": cpu_recipe(),
    "cpu, full recompute": cpu_recipe(FULL),
    "cpu, PP2": cpu_recipe({"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 1}),
    "gpu": gpu_recipe(),
    "gpu, everything allowed": gpu_recipe(allow="benchmark-only"),
    "gpu, TP2 PP2": gpu_recipe(TP2 | {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 4}),
    "gpu, long": gpu_recipe({"global_batch_size": 32, "seq_length": 32768}),
    "gpu, offloaded": gpu_recipe(FULL | {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5}),
    "gpu, micro batch 4": gpu_recipe({"micro_batch_size": 4}),
    "gpu, ETP2": gpu_recipe(TP2 | {"expert_tensor_parallel_size": 2, "expert_model_parallel_size": 8}),
    "gpu, CP2": gpu_recipe({"context_parallel_size": 2}),
    **{f"example {name}": load_recipe(name) for name in packaged_examples()},
}
EVERY_WALL = {
    Wall.MEMORY: {"recompute": 30_000.0, "offload_copies": 5_000.0, "allocator": 3_000.0},
    Wall.COMMUNICATION: dict.fromkeys(("ep_dispatch", "ep_combine", "tp", "cp", "pp", "dp"), 8_000.0),
    Wall.HOST: {"launching": 20_000.0, "garbage_collection": 9_000.0},
    Wall.COMPUTE: {"below_attainable": 40_000.0},
}

each_fix = pytest.mark.parametrize("fix", FIXES.values(), ids=FIXES.keys())
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())


def situation(recipe: Recipe) -> Situation:
    return Situation(recipe=recipe, analysis=analysis(EVERY_WALL), outcome=outcome(recipe))


@each_fix
def test_a_fix_is_named_as_its_file_and_explains_itself(fix: Fix) -> None:
    assert FIXES[fix.name] is fix
    assert fix.page.summary.endswith(".")
    for text in asdict(fix.page).values():
        assert text == " ".join(text.split())
        assert text
        assert "*" not in text, "plain text"
        assert text.count("`") % 2 == 0
    assert re.search(r"\d|documentation", fix.page.source), "the source must be found again"


@each_fix
def test_a_fix_belongs_to_a_phase_that_can_reach_it(fix: Fix) -> None:
    listed = {name for plan in PLANS for name in (*plan.fixes, *plan.last_resorts)}
    by_wall = {plan.phase for plan in PLANS if not plan.fixes}
    assert fix.phases
    assert fix.name in listed or (set(fix.phases) & by_wall and fix.claims)


def test_a_plan_names_only_fixes_that_exist_and_name_its_phase() -> None:
    for plan in PLANS:
        for name in (*plan.fixes, *plan.last_resorts):
            assert plan.phase in FIXES[name].phases


@each_fix
def test_a_claim_is_a_fraction_with_a_source(fix: Fix) -> None:
    for claim in fix.claims:
        assert 0.0 < claim.fraction <= 1.0
        assert claim.source
    assert 0.0 <= fix.chance <= 1.0


@each_fix
@each_recipe
def test_a_fix_expects_no_more_than_its_wall_gives(fix: Fix, recipe: Recipe) -> None:
    here = situation(recipe)
    claimed = fix.claimed_us(here)
    if claimed:
        wall, us = claimed
        assert us <= here.recoverable_us(wall)
        assert gain_of(us, here.step_us) <= gain_of(here.recoverable_us(wall), here.step_us)


@each_fix
@each_recipe
def test_a_fix_changes_knobs_that_exist_to_values_they_take(fix: Fix, recipe: Recipe) -> None:
    here = situation(recipe)
    if fix.precondition(here):
        return
    for changes in fix.changes(here):
        assert set(changes) <= set(KNOBS)
        for knob, value in changes.items():
            assert KNOBS[knob].domain.problem(value) is None, (knob, value)


@each_fix
@each_recipe
def test_what_a_fix_derives_is_legal_and_allowed(fix: Fix, recipe: Recipe) -> None:
    here = situation(recipe)
    if fix.precondition(here):
        return
    for changes in fix.changes(here):
        derived = derive(recipe, changes)
        if isinstance(derived, Refusal):
            assert derived.reason
            continue
        moved = {knob: to for knob, (_, to) in recipe.diff(derived).items()}
        assert [f for f in check(derived) if f.kind == "error"] == []
        assert not set(moved) & set(recipe.tune.freeze)
        assert NUMERICS.index(numerics_of(moved)) <= NUMERICS.index(recipe.tune.allow)


@each_fix
def test_a_frozen_knob_stays_still(fix: Fix) -> None:
    for recipe in RECIPES.values():
        frozen = recipe.model_copy(update={"tune": recipe.tune.model_copy(update={"freeze": tuple(KNOBS)})})
        if fix.precondition(situation(frozen)):
            continue
        assert all(isinstance(derive(frozen, change), Refusal) for change in fix.changes(situation(frozen)))


@each_fix
def test_a_fix_is_legal_on_some_recipe(fix: Fix) -> None:
    """A fix that no example can take would be dead."""
    applies = [
        name
        for name, recipe in RECIPES.items()
        if not fix.precondition(situation(recipe))
        and any(isinstance(derive(recipe, change), Recipe) for change in fix.changes(situation(recipe)))
    ]
    assert applies or fix.name in NEEDS_MORE


# On top of other fixes than the examples have: tested where they apply.
NEEDS_MORE = {"delayed_wgrad", "shared_expert_overlap"}


def test_less_offload_never_offloads_what_was_on_the_device() -> None:
    """With a fraction of 0, Megatron-Core's own default, nothing is offloaded though the switch is on."""
    nothing = gpu_recipe({"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True})
    assert FIXES["drop_offload"].changes(Situation(recipe=nothing)) == [{"optimizer_cpu_offload": False}]


def test_binding_the_only_rank_of_a_node_is_not_worth_a_burst() -> None:
    recipe = cpu_recipe()
    alone = recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"gpus_per_node": 1})})
    assert FIXES["cpu_affinity"].precondition(Situation(recipe=alone)) == "a node has one rank"
    assert FIXES["cpu_affinity"].precondition(Situation(recipe=recipe)) is None


@pytest.mark.parametrize(
    ("knobs", "applies"),
    [
        ({}, True),
        ({"manual_gc": True, "manual_gc_interval": 1}, True),  # by hand, and in every step
        ({"manual_gc": True, "manual_gc_interval": 10}, False),
        ({"manual_gc": True, "manual_gc_interval": 0}, False),
    ],
)
def test_garbage_that_is_collected_by_hand_in_every_step_can_be_collected_less_often(
    knobs: dict[str, object], applies: bool
) -> None:
    assert (FIXES["manual_gc"].precondition(situation(gpu_recipe(knobs))) is None) is applies
