"""Checks what every registered fix must hold to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from analyzers.diagnosis import Wall
from policies.changes.fix import Fix, gain_of
from policies.changes.legality import Refusal, derive, numerics_of
from policies.fixes import FITTING, FIXES, LAST_RESORTS
from policies.situation import Situation
from policies.trial import Phase
from tests.policies.drawn import analysis, cpu_recipe, gpu_recipe, outcome
from tests.rows import filled
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
    "gpu, offloaded": gpu_recipe(
        FULL | {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5, "use_precision_aware_optimizer": True}
    ),
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
# fixes that apply only on top of fixes that no recipe here has: tested where they apply
NEEDS_MORE = {"delayed_wgrad", "shared_expert_overlap"}


def situation(recipe: Recipe) -> Situation:
    return Situation(recipe=recipe, analysis=analysis(EVERY_WALL), outcome=outcome(recipe))


def applying(recipe: Recipe) -> Iterator[tuple[Fix, list[dict[str, object]]]]:
    """Yields every fix that applies to a recipe, with its changes."""
    here = situation(recipe)
    for fix in FIXES.values():
        if fix.precondition(here) is None:
            yield fix, fix.changes(here)


def test_a_fix_is_named_as_its_file_and_explains_itself() -> None:
    for name, fix in filled(FIXES.items()):
        assert fix.name == name
        assert fix.page.summary.endswith("."), name
        for text in asdict(fix.page).values():
            assert text == " ".join(text.split()), name
            assert text, name
            assert "*" not in text, f"{name}: plain text"
            assert text.count("`") % 2 == 0, name
        assert re.search(r"\d|documentation", fix.page.source), f"{name}: the source must be found again"


def test_a_fix_names_knobs_that_exist_a_matcher_and_a_phase_that_can_reach_it() -> None:
    for name, fix in filled(FIXES.items()):
        assert fix.knobs, name
        assert set(fix.knobs) <= set(KNOBS), name
        assert callable(fix.matches), name
        assert fix.phases, name
        assert (Phase.FIT in fix.phases) == (fix.fit_order is not None), name


def test_no_two_fixes_have_the_same_place_in_the_order_of_fitting() -> None:
    places = [fix.fit_order for fix in filled(FIXES.values()) if fix.fit_order is not None]
    assert len({*places}) == len(places) == len(FITTING) + len(LAST_RESORTS)


def test_a_claim_is_a_fraction_with_a_source() -> None:
    for fix in filled(FIXES.values()):
        assert all(0.0 < claim.fraction <= 1.0 and claim.source for claim in fix.claims), fix.name
        assert 0.0 <= fix.chance <= 1.0, fix.name


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_fixes_claim_at_most_what_their_wall_gives_and_make_legal_recipes(recipe: Recipe) -> None:
    """Checks that a fix claims at most what its wall can give, that its changes are valid values of existing knobs, and
    that the derived recipes are legal, allowed and keep frozen knobs."""
    wrong: list[object] = []
    here = situation(recipe)
    for fix, options in applying(recipe):
        claimed = fix.claimed_us(here)
        if claimed and claimed[1] > here.recoverable_us(claimed[0]):
            wrong.append((fix.name, claimed))
        if claimed and gain_of(claimed[1], here.step_us) > gain_of(here.recoverable_us(claimed[0]), here.step_us):
            wrong.append((fix.name, claimed))
        for changes in options:
            unknown = set(changes) - set(KNOBS)
            problems = [knob for knob, value in changes.items() if not unknown and KNOBS[knob].domain.problem(value)]
            derived = derive(recipe, changes)
            if isinstance(derived, Refusal):
                wrong += [(fix.name, "no reason")] if not derived.reason else []
                continue
            moved = {knob: to for knob, (_, to) in recipe.diff(derived).items()}
            illegal = [finding for finding in check(derived) if finding.kind == "error"]
            frozen = set(moved) & set(recipe.tune.freeze)
            too_much = NUMERICS.index(numerics_of(moved)) > NUMERICS.index(recipe.tune.allow)
            if unknown or problems or illegal or frozen or too_much:
                wrong.append((fix.name, changes, unknown, problems, illegal, frozen, too_much))
    assert wrong == []


def test_frozen_knobs_stay_still() -> None:
    moved = []
    for name, recipe in RECIPES.items():
        frozen = recipe.model_copy(update={"tune": recipe.tune.model_copy(update={"freeze": tuple(KNOBS)})})
        for fix, options in applying(frozen):
            moved += [(name, fix.name) for change in options if not isinstance(derive(frozen, change), Refusal)]
    assert moved == []


def test_every_fix_is_legal_on_some_recipe() -> None:
    """A fix that no example can take would be dead."""
    legal = {
        fix.name
        for recipe in RECIPES.values()
        for fix, options in applying(recipe)
        if any(isinstance(derive(recipe, change), Recipe) for change in options)
    }
    assert set(FIXES) - legal <= NEEDS_MORE


def test_less_offload_never_offloads_what_was_on_the_device() -> None:
    """At a fraction of 0, Megatron-Core's own default, nothing is offloaded though the switch is on."""
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
