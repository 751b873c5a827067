"""What is tried of knobs that no closed form sees: from the knob table, one at a time, by wall and published effect."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from policies.effects import OTHERS, Effect, effect_of, effects, gained
from policies.gate import closed_form_gib
from policies.untold import offers, propose_untold
from policies.view import view_of

from analyzers.diagnosis import Wall
from benchmarks.places import data_file
from policies.search.space import AXES, ROWS, moves
from policies.surrogate.surrogate import Surrogate
from policies.trial import Phase, Prediction, Proposal, Trial, Verdict
from tests.policies.drawn import STEP_US, analysis, gpu_recipe, outcome, trial
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

LEAST = 0.003
HOST = analysis({Wall.HOST: {"python": 0.3 * STEP_US}})
COMMUNICATION = analysis({Wall.COMMUNICATION: {"ep_dispatch": 0.3 * STEP_US}})


def recipe(**knobs: Any) -> Recipe:
    """Qwen3-30B on two nodes with HybridEP; garbage is collected by hand."""
    switches = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
    return gpu_recipe({**switches, "manual_gc": True, "manual_gc_interval": 100, **knobs})


def base(seen: Any, **knobs: Any) -> Trial:
    found = recipe(**knobs)
    return trial(found, seen=seen, given=outcome(found, peak_gib=30.0))


def believe(trials: Sequence[Trial]) -> Surrogate:
    return fit_surrogate(trials, limit_gib=79.0)


def proposed(best: Trial, trials: Sequence[Trial], *, least: float = LEAST) -> Proposal | None:
    return propose_untold(view_of(best, trials, closed_form_gib), believe(trials), least=least)


def lost(best: Trial, number: int, found: Recipe) -> Trial:
    given = outcome(found, peak_gib=30.0)
    ran = trial(found, number=number, parent=best, phase=Phase.RETUNE, given=given, verdict=Verdict.REJECTED)
    return replace(ran, proposal=replace(ran.proposal, predicted=Prediction(gain=0.01, published=True)))


def test_one_knob_moves_at_a_time_and_acts_on_the_wall() -> None:
    for seen, wall in ((HOST, "host"), (COMMUNICATION, "communication")):
        best = base(seen)
        found = proposed(best, [best])
        assert found is not None
        ((knob, (_, to)),) = best.recipe.diff(found.recipe).items()
        assert wall in KNOBS[knob].walls
        assert found.phase is Phase.RETUNE
        assert f"the estimate does not model {knob}" in found.because
        assert effect_of(best.recipe, knob, to).source in found.because


def test_the_gain_that_is_predicted_is_within_what_the_wall_could_give() -> None:
    best = base(analysis({Wall.HOST: {"python": 0.01 * STEP_US}}))
    found = proposed(best, [best], least=1e-6)
    assert found is not None
    predicted = found.predicted
    assert predicted.gain is not None
    assert predicted.gain_bound is not None
    assert predicted.gain_high is not None
    assert predicted.gain <= predicted.gain_bound == pytest.approx(0.01 / 0.99)
    assert predicted.gain_high <= predicted.gain_bound


def test_where_no_wall_could_give_more_than_a_burst_is_worth_nothing_is_tried() -> None:
    best = base(analysis({Wall.HOST: {"python": 0.002 * STEP_US}}))
    assert proposed(best, [best]) is None


def test_patience_of_them_in_a_row_without_a_gain_end_it() -> None:
    best = base(COMMUNICATION)
    trials = [best]
    while found := proposed(best, trials):
        trials.append(lost(best, len(trials), found.recipe))
        assert len(trials) <= 1 + best.recipe.tune.patience
    assert len(trials) == 1 + best.recipe.tune.patience
    assert len({one.recipe.digest() for one in trials}) == len(trials)


def test_the_recipe_that_is_run_as_the_reference_does_not_renew_patience() -> None:
    best = base(COMMUNICATION)
    trials = [best]
    while found := proposed(best, trials):
        trials.append(lost(best, len(trials), found.recipe))
    reference = trial(recipe(micro_batch_size=1), number=len(trials), parent=best, phase=Phase.FIT)
    assert proposed(best, [*trials, reference]) is None


def test_an_interval_is_never_upside_down() -> None:
    best = base(analysis({Wall.MEMORY: {"offload": 0.01 * STEP_US}}), optimizer_cpu_offload=True)
    for offer in offers(view_of(best, [best], closed_form_gib), believe([best])):
        found = propose_untold(view_of(best, [best], closed_form_gib), believe([best]), least=offer.worth)
        if found is not None:
            assert found.predicted.gain_low is not None
            assert found.predicted.gain_high is not None
            assert found.predicted.gain_low < found.predicted.gain_high


def test_a_number_that_lost_one_way_is_not_moved_further_that_way() -> None:
    best = base(COMMUNICATION)
    trials = [best, lost(best, 1, recipe(moe_hybridep_num_sms=24))]
    found = offers(view_of(best, trials, closed_form_gib), believe(trials))
    assert [offer.value for offer in found if offer.knob.name == "moe_hybridep_num_sms"] == [8]


def test_a_knob_of_the_table_is_tried_alone_or_with_others_or_not_at_all() -> None:
    together = {knob for row in ROWS.values() for knob in row.knobs}
    for knob in KNOBS.values():
        assert all(knob.domain.problem(value) is None for value in knob.tries), knob.name
        assert len(set(knob.tries)) == len(knob.tries) != 1, knob.name
        if knob.tries:
            assert knob.name in together
            assert not knob.together
    alone = {name for name, row in ROWS.items() if name in KNOBS}
    assert alone == {name for name, knob in KNOBS.items() if knob.tries} - {
        k for row in AXES.values() for k in row.knobs
    }
    assert {knob for row in AXES.values() for knob in row.knobs} <= {
        knob.name for knob in KNOBS.values() if knob.tries or knob.together
    }


def test_every_move_is_legal_and_leaves_alone_what_is_frozen() -> None:
    frozen = recipe().model_copy(
        update={"tune": recipe().tune.model_copy(update={"freeze": ("moe_hybridep_num_sms",)})}
    )
    moved = {knob for _, _, other in moves(frozen) for knob in frozen.diff(other)}
    assert "moe_hybridep_num_sms" not in moved
    assert {"moe_hybridep_num_sms_preprocessing", "CUDA_DEVICE_MAX_CONNECTIONS", "bucket_size"} <= moved


def test_away_from_what_gained_elsewhere_a_loss_is_expected_and_what_gained_is_left_on() -> None:
    sixteen = recipe(moe_hybridep_num_sms=16, cpu_affinity="none")
    assert effect_of(sixteen, "moe_hybridep_num_sms", 24).gain > 0
    assert effect_of(sixteen, "moe_hybridep_num_sms", 8).gain < 0
    assert effect_of(sixteen, "cpu_affinity", "spread").gain > 0
    assert effect_of(sixteen, "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", 128) == effects()[OTHERS]
    best = base(HOST, cpu_affinity="spread", moe_router_fusion=True)
    moved = {offer.knob.name for offer in offers(view_of(best, [best], closed_form_gib), believe([best]))}
    assert not moved & {"cpu_affinity", "moe_router_fusion"}
    assert "moe_permute_fusion_into_hybridep" in moved


def test_what_gained_in_one_precision_is_not_expected_of_another() -> None:
    fuser = effects()["use_transformer_engine_op_fuser"]
    on = recipe(use_transformer_engine_op_fuser=True)
    assert not gained(on, "use_transformer_engine_op_fuser")
    assert fuser.precision == "mxfp8"
    assert effect_of(recipe(), "use_transformer_engine_op_fuser", True) == effects()[OTHERS]
    narrow = recipe()
    training = narrow.training.model_copy(update={"precision": "mxfp8"})
    fused = narrow.model_copy(update={"training": training})
    assert effect_of(fused, "use_transformer_engine_op_fuser", True) == fuser
    assert gained(fused.replace({"use_transformer_engine_op_fuser": True}), "use_transformer_engine_op_fuser")


def test_published_effects_name_rows_that_exist() -> None:
    with data_file("effects.csv").open(encoding="utf-8") as file:
        known = {row["id"] for row in csv.DictReader(file)}
    for name, effect in effects().items():
        assert name == OTHERS or KNOBS[name].tries, name
        assert effect.value is None or KNOBS[name].domain.problem(effect.value) is None
        assert set(effect.source.split()) <= known


def test_worth_counts_no_loss_and_no_more_than_the_wall() -> None:
    effect = Effect(gain=0.0, spread=0.02, evidence="", source="")
    assert effect.worth(at_most=math.inf) == pytest.approx(0.02 * 0.3989, rel=1e-3)
    assert 0 < effect.worth(at_most=0.005) < 0.0025
    assert effect.worth(at_most=0.0) == 0.0
