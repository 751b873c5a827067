"""Checks what is not tried again (recipes, refusals, suspects of failures, changes that lost), and patience."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from policies.candidates.layouts import legal_space
from policies.noise import Noise
from policies.search.avoid import SUSPECT_DISCOUNT, UNCLEAR_NOISE, Avoid, refusals_of
from policies.trial import Phase, Prediction, Status, Trial, Verdict
from policies.tuner.tuner import Tuner
from tests.policies.drawn import failed, gpu_recipe, out_of_memory, outcome, trial
from trainer.burst import FailureKind
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe

TORCH_NORM = "AssertionError: sequence parallel not supported by torch LayerNorm"
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
BASE = trial(gpu_recipe())


def rejected(changes: dict[str, object], *, number: int = 1, tokens_per_s: float = 900.0) -> Trial:
    recipe = gpu_recipe(changes)
    given = outcome(recipe, tokens_per_s=tokens_per_s)
    return trial(recipe, number=number, parent=BASE, phase=Phase.PROFILE, given=given, verdict=Verdict.REJECTED)


def test_the_value_that_the_trainer_names_is_the_cause() -> None:
    (found,) = refusals_of([BASE, failed(gpu_recipe(TENSOR), TORCH_NORM)])
    assert found.values == {"sequence_parallel": (True,)}
    assert found.covers(gpu_recipe({"tensor_model_parallel_size": 4, "sequence_parallel": True}))
    assert not found.covers(gpu_recipe({"tensor_model_parallel_size": 2}))
    assert not found.covers(gpu_recipe({"sequence_parallel": True}))  # it cannot act without TP
    assert found.trial == 1
    assert found.evidence.endswith(TORCH_NORM)


def test_a_package_that_is_missing_names_what_needs_it() -> None:
    deepep = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
    said = "ImportError: DeepEP is not installed. Please install DeepEP package."
    (found,) = refusals_of([BASE, failed(gpu_recipe(deepep), said, kind=FailureKind.IMPORT)])
    assert found.values == {"moe_flex_dispatcher_backend": ("deepep",)}


def test_without_a_name_only_all_of_it_is_refused_until_a_second_refusal_has_less_in_common() -> None:
    said = "RuntimeError: unsupported configuration (code 7)"
    one = failed(gpu_recipe({"moe_permute_fusion": True, "moe_router_fusion": True}), said)
    two = failed(gpu_recipe({"moe_permute_fusion": True, "manual_gc": True}), said.replace("7", "19"), number=2)
    (first,) = refusals_of([BASE, one])
    assert first.values.keys() == {"moe_permute_fusion", "moe_router_fusion"}
    (both,) = refusals_of([BASE, one, two])
    assert both.values == {"moe_permute_fusion": (True,)}


def test_a_number_is_refused_in_its_layout_alone_until_it_was_refused_twice() -> None:
    said = "ValueError: global batch size (256) is not divisible by micro batch size (8)"
    (found,) = refusals_of([BASE, failed(gpu_recipe({"micro_batch_size": 8}), said)])
    assert found.covers(gpu_recipe({"micro_batch_size": 8}))
    assert not found.covers(gpu_recipe({"micro_batch_size": 8, "expert_model_parallel_size": 8}))
    said = "AssertionError: context parallel size 2 needs the fused attention"
    (found,) = refusals_of([BASE, failed(gpu_recipe({"context_parallel_size": 2}), said)])
    assert found.covers(gpu_recipe({"context_parallel_size": 2, "expert_model_parallel_size": 8}))


def ran_with(layers: str, *packages: str) -> Trial:
    """Returns the base trial of ranks with these layers and optional packages."""
    given = msgspec.structs.replace(outcome(BASE.recipe), layers=layers, versions=dict.fromkeys(packages, "1.0"))
    return trial(BASE.recipe, given=given)


def test_what_the_ranks_of_a_burst_lack_is_not_tried() -> None:
    flex = {"moe_token_dispatcher_type": "flex"}
    needing = [{"moe_permute_fusion": True}, {"moe_grouped_gemm": True}, {"precision": "fp8_blockwise"}, flex]
    lacking = {
        (): ("local", [True, True, True, True]),
        ("grouped-gemm", "deep-ep"): ("local", [True, False, True, False]),
        ("deep-ep",): ("transformer_engine", [False, False, False, False]),
    }
    for packages, (layers, expected) in lacking.items():
        avoid = Avoid([ran_with(layers, *packages)])
        assert [avoid.refusal(gpu_recipe(changes)) is not None for changes in needing] == expected
        assert avoid.refused_rows(tabulate([gpu_recipe(changes) for changes in needing])).tolist() == expected
    assert Avoid([BASE]).refusals == ()  # a trainer that does not tell what it has


def test_layouts_and_settings_are_searched_together_without_the_package_that_is_missing() -> None:
    avoid = Avoid([ran_with("transformer_engine")])
    space = legal_space(BASE.recipe, avoid.missing_knobs)
    assert space.finals.candidates.count > 1000
    assert not avoid.refused_rows(space.finals.candidates).any()
    assert space.finals.candidates.base.tune == BASE.recipe.tune


def test_the_last_burst_tells_what_is_installed() -> None:
    assert Avoid([ran_with("local"), ran_with("transformer_engine", "deep-ep")]).refusals == ()
    assert Avoid([ran_with("transformer_engine", "deep-ep"), ran_with("local", "deep-ep")]).refusals


def test_a_later_failure_or_a_broken_rule_of_ours_is_no_refusal() -> None:
    crash = failed(gpu_recipe(TENSOR), TORCH_NORM, kind=FailureKind.CRASH)
    ours = replace(failed(gpu_recipe(TENSOR), TORCH_NORM), bursts=())
    assert refusals_of([BASE, crash, ours]) == ()
    assert refusals_of([failed(gpu_recipe(TENSOR), TORCH_NORM)]) == ()  # nothing ran: anything may be the cause


def test_rows_of_a_table_are_refused_as_recipes_are() -> None:
    recipes = [gpu_recipe(), gpu_recipe(TENSOR), gpu_recipe(TENSOR | {"micro_batch_size": 2})]
    avoid = Avoid([BASE, failed(recipes[1], TORCH_NORM)])
    assert avoid.refused_rows(tabulate(recipes)).tolist() == [False, True, True]
    assert [avoid.excludes(recipe) for recipe in recipes] == [True, True, True]  # the first was tried
    assert not avoid.excludes(gpu_recipe({"micro_batch_size": 2}))


def test_the_tuner_proposes_nothing_with_the_cause() -> None:
    base = gpu_recipe({"expert_model_parallel_size": 8})
    tuner, given = Tuner(base, seed=1), trial(base)
    trials = [given, failed(base.replace(TENSOR), TORCH_NORM, parent=given)]
    for number in range(2, 6):
        proposal = tuner.propose(given, Phase.SCALE, trials)
        if proposal is None:
            break
        assert not proposal.recipe.knob("sequence_parallel") or proposal.recipe.knob("tensor_model_parallel_size") == 1
        trials.append(failed(proposal.recipe, f"AssertionError: no {number}", number=number, parent=given))


def test_a_value_that_only_a_failed_recipe_has_had_is_a_suspect() -> None:
    fused = {"moe_permute_fusion": True, "moe_router_fusion": True}
    crash = failed(gpu_recipe(fused | {"micro_batch_size": 2}), "Segmentation fault", kind=FailureKind.CRASH)
    avoid = Avoid([BASE, crash, rejected({"micro_batch_size": 2}, number=2)])
    assert avoid.warns_of(fused)
    assert not avoid.warns_of({"micro_batch_size": 2})  # a recipe with it has run since
    table = tabulate([gpu_recipe(fused), gpu_recipe({"moe_router_fusion": True}), gpu_recipe()])
    shares = [1.0, 0.5, 0.0]
    assert avoid.trust(table) == pytest.approx([1 - SUSPECT_DISCOUNT * share for share in shares])


def test_running_out_of_memory_makes_no_suspect() -> None:
    died = trial(gpu_recipe({"micro_batch_size": 4}), number=1, parent=BASE, given=out_of_memory(gpu_recipe()))
    assert not Avoid([BASE, died]).warns_of({"micro_batch_size": 4})


def test_a_change_that_lost_is_lost_again_and_a_larger_step_the_same_way_too() -> None:
    lost = rejected({"micro_batch_size": 2})
    avoid = Avoid([BASE, lost])
    assert avoid.lost_by(gpu_recipe(), {"micro_batch_size": 2}) is lost
    assert avoid.lost_by(gpu_recipe(), {"micro_batch_size": 4}) is lost
    assert avoid.lost_by(gpu_recipe({"micro_batch_size": 4}), {"micro_batch_size": 1}) is None
    assert avoid.lost_by(gpu_recipe(), {"micro_batch_size": 2, "manual_gc": True}) is None


def test_running_out_of_memory_is_no_loss_and_an_accepted_change_neither() -> None:
    died = trial(gpu_recipe({"micro_batch_size": 2}), number=1, parent=BASE, given=out_of_memory(gpu_recipe()))
    won = replace(rejected({"manual_gc": True}, number=2), verdict=Verdict.ACCEPTED)
    avoid = Avoid([BASE, died, won])
    assert avoid.lost_by(gpu_recipe(), {"micro_batch_size": 2}) is None
    assert avoid.lost_by(gpu_recipe(), {"manual_gc": True}) is None


def test_what_was_inconclusive_on_a_noisy_machine_may_be_tried_again() -> None:
    """Repeats lie 30 % above and below their mean, so that a tenth less throughput is no evidence."""
    noisy = replace(BASE, outcomes=tuple(outcome(BASE.recipe, tokens_per_s=rate) for rate in (700.0, 1300.0)))
    unclear = replace(rejected({"micro_batch_size": 2}), verdict=Verdict.INCONCLUSIVE)
    assert Noise(trials=[noisy]).half_spread() > UNCLEAR_NOISE
    assert Avoid([noisy, unclear]).lost_by(gpu_recipe(), {"micro_batch_size": 2}) is None
    assert Avoid([BASE, unclear]).lost_by(gpu_recipe(), {"micro_batch_size": 2}) is unclear
    assert Avoid([noisy, rejected({"micro_batch_size": 2})]).lost_by(gpu_recipe(), {"micro_batch_size": 2})


def test_exactly_the_opposite_of_what_gained_is_undone_by_it() -> None:
    won = replace(rejected({"micro_batch_size": 2}), verdict=Verdict.ACCEPTED)
    avoid = Avoid([BASE, won])
    assert avoid.undone_by({"micro_batch_size": 1}) is won
    assert avoid.undone_by({"micro_batch_size": 4}) is None
    assert avoid.undone_by({"micro_batch_size": 1, "manual_gc": True}) is None


def published(recipe: Recipe, number: int, *, is_published: bool = True, verdict: Verdict = Verdict.REJECTED) -> Trial:
    found = trial(recipe, number=number, parent=BASE, phase=Phase.RETUNE, verdict=verdict)
    predicted = Prediction(gain=0.01, published=is_published)
    return replace(found, proposal=replace(found.proposal, predicted=predicted))


def test_patience_counts_the_last_trials_without_a_gain_and_skips_those_of_fit() -> None:
    recipe = gpu_recipe()
    reference = trial(recipe, number=9, parent=BASE, phase=Phase.FIT)

    def counted(*trials: Trial) -> int:
        return Avoid(trials).without_gain(lambda each: each.proposal.predicted.published)

    assert counted(BASE) == 0
    assert counted(BASE, published(recipe, 1), published(recipe, 2)) == 2
    assert counted(BASE, published(recipe, 1), published(recipe, 2), reference) == 2
    assert counted(BASE, published(recipe, 1), published(recipe, 2, is_published=False)) == 0
    assert counted(BASE, published(recipe, 1, verdict=Verdict.ACCEPTED), published(recipe, 2)) == 1


def test_a_trial_that_did_nothing_counts_as_lost() -> None:
    noop = replace(rejected({"manual_gc": True}), status=Status.NOOP, verdict=None)
    assert Avoid([BASE, noop]).lost_by(gpu_recipe(), {"manual_gc": True}) is noop
