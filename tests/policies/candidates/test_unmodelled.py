"""Candidates that the surrogate cannot predict: settings by published effects, fixes by what they claim."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import msgspec
import pytest

import policies.candidates.neighbours as neighbours_module
import policies.candidates.unmodelled as unmodelled_module
import policies.tuner.decomposition as decomposition_module
import policies.tuner.ideas as ideas_module
from analyzers.diagnosis import Analysis, Wall
from benchmarks.places import data_file
from policies.candidates.candidate import Candidate, PredictionSource, best_first
from policies.candidates.effects import UNLISTED, Effect, effect_of, effects, gained
from policies.candidates.neighbours import moves
from policies.candidates.unmodelled import PUBLISHED_RELIABILITY, claimed_fixes, settings
from policies.changes.fix import Claim, Fix
from policies.changes.matching import becomes
from policies.fixes import FIXES
from policies.reason import ReasonKind
from policies.trial import Phase, Proposal, Trial, Verdict
from policies.tuner.phases import phase_of
from policies.tuner.tuner import Tuner
from tests.policies.drawn import STEP_US, analysis, cpu_recipe, gpu_recipe, knowledge, outcome, trial
from tests.rows import filled
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

HOST = analysis({Wall.HOST: {"python": 0.3 * STEP_US}})
COMMUNICATION = analysis({Wall.COMMUNICATION: {"ep_dispatch": 0.3 * STEP_US}})
LIMIT_GIB = 79.0


def recipe(**knobs: Any) -> Recipe:
    """Returns Qwen3-30B on two nodes with HybridEP and manual garbage collection."""
    switches = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
    return gpu_recipe({**switches, "manual_gc": True, "manual_gc_interval": 100, **knobs})


def base(seen: Analysis, **knobs: Any) -> Trial:
    found = recipe(**knobs)
    return trial(found, seen=seen, given=outcome(found, peak_gib=30.0))


def offered(best: Trial, *others: Trial) -> list[Candidate]:
    return settings(knowledge(best, *others, limit_gib=LIMIT_GIB), list(moves(best.recipe)))


def rejected(best: Trial, number: int, found: Recipe) -> Trial:
    given = outcome(found, tokens_per_s=990.0, peak_gib=30.0)
    return trial(found, number=number, parent=best, phase=Phase.RETUNE, given=given, verdict=Verdict.REJECTED)


def test_one_knob_moves_at_a_time_by_its_published_effect() -> None:
    for seen, wall in ((HOST, "host"), (COMMUNICATION, "communication")):
        best = base(seen)
        found = offered(best)
        assert found
        for each in found:
            assert each.source is PredictionSource.PUBLISHED
            assert each.published is not None
            name = each.published.knob.name
            assert list(best.recipe.diff(each.recipe)) == [name]
            assert each.published.effect == effect_of(best.recipe, name, each.recipe.knob(name))
        first = max(found, key=lambda each: each.expected_improvement)
        assert first.published is not None
        assert wall in first.published.knob.walls


def test_a_published_effect_counts_as_often_as_such_came_true() -> None:
    for each in filled(offered(base(HOST))):
        assert each.score == pytest.approx(PUBLISHED_RELIABILITY * each.expected_improvement)


def test_the_predicted_gain_is_within_what_the_wall_could_give() -> None:
    for each in filled(offered(base(analysis({Wall.HOST: {"python": 0.01 * STEP_US}})))):
        gain, low, high, bound = each.prediction
        assert low is not None
        assert high is not None
        assert low < high <= bound
        assert gain <= bound
        if each.published is not None and each.published.knob.walls == ("host",):
            assert bound == pytest.approx(0.01 / 0.99)


def test_where_no_wall_could_give_anything_no_setting_is_worth_a_burst() -> None:
    assert max(each.expected_improvement for each in offered(base(analysis({Wall.HOST: {"python": 0.0}})))) == 0.0


def test_a_number_that_lost_one_way_is_not_moved_further_that_way() -> None:
    best = base(COMMUNICATION)
    found = offered(best, rejected(best, 1, recipe(moe_hybridep_num_sms=24)))
    assert values(found, "moe_hybridep_num_sms") == [8]


def values(found: Sequence[Candidate], knob: str) -> list[Any]:
    return [each.recipe.knob(knob) for each in found if each.published and each.published.knob.name == knob]


def test_away_from_what_gained_elsewhere_a_loss_is_predicted_and_what_gained_is_left_on() -> None:
    sixteen = recipe(moe_hybridep_num_sms=16, cpu_affinity="none")
    assert effect_of(sixteen, "moe_hybridep_num_sms", 24).gain > 0
    assert effect_of(sixteen, "moe_hybridep_num_sms", 8).gain < 0
    assert effect_of(sixteen, "cpu_affinity", "spread").gain > 0
    assert effect_of(sixteen, "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", 128) == effects()[UNLISTED]
    best = base(HOST, cpu_affinity="spread", moe_router_fusion=True)
    moved = {each.published.knob.name for each in offered(best) if each.published}
    assert not moved & {"cpu_affinity", "moe_router_fusion"}
    assert "moe_permute_fusion_into_hybridep" in moved


def test_what_gained_in_one_precision_is_not_predicted_of_another() -> None:
    fuser = effects()["use_transformer_engine_op_fuser"]
    on = recipe(use_transformer_engine_op_fuser=True)
    assert not gained(on, "use_transformer_engine_op_fuser")
    assert fuser.precision == "mxfp8"
    assert effect_of(recipe(), "use_transformer_engine_op_fuser", True) == effects()[UNLISTED]
    narrow = recipe()
    fused = narrow.model_copy(update={"training": narrow.training.model_copy(update={"precision": "mxfp8"})})
    assert effect_of(fused, "use_transformer_engine_op_fuser", True) == fuser
    assert gained(fused.replace({"use_transformer_engine_op_fuser": True}), "use_transformer_engine_op_fuser")


def test_published_effects_name_rows_that_exist() -> None:
    with data_file("effects.csv").open(encoding="utf-8") as file:
        known = {row["id"] for row in csv.DictReader(file)}
    for name, effect in filled(effects().items()):
        assert name == UNLISTED or KNOBS[name].tries, name
        assert effect.value is None or KNOBS[name].domain.problem(effect.value) is None
        assert set(effect.source.split()) <= known


def test_expected_improvement_counts_no_loss_and_no_more_than_the_wall() -> None:
    effect = Effect(gain=0.0, spread=0.02, evidence="", source="")
    assert effect.expected_improvement(at_most=math.inf) == pytest.approx(0.02 * 0.3989, rel=1e-3)
    assert 0 < effect.expected_improvement(at_most=0.005) < 0.0025
    assert effect.expected_improvement(at_most=0.0) == 0.0


def losing_to(cause: str) -> Trial:
    """Returns the base with a traced loss to a cause that is not a wall."""
    seen = analysis({Wall.COMMUNICATION: {"ep_dispatch": 20_000.0}})
    diagnosis = msgspec.structs.replace(seen.diagnosis, waits={cause: 0.3 * STEP_US})
    found = gpu_recipe(allow="numerics-changing")
    return trial(found, given=outcome(found, peak_gib=30.0), seen=msgspec.structs.replace(seen, diagnosis=diagnosis))


def test_a_fix_that_the_surrogate_sees_no_change_in_is_a_candidate_by_its_claim() -> None:
    best = losing_to("experts_load")
    found = {each.claimed.fix.name: each for each in claimed_fixes(knowledge(best), Phase.PROFILE) if each.claimed}
    each = found["even_experts"]
    assert each.source is PredictionSource.TRACE
    assert each.claimed is not None
    assert each.log_gain is not None
    assert 0 < math.expm1(each.log_gain) <= each.claimed.bound
    assert each.score == each.expected_improvement  # a wait that the surrogate does not model counts in full
    assert claimed_fixes(knowledge(best), Phase.SCALE) == []


def test_a_claim_within_the_noise_or_that_lost_before_is_none() -> None:
    best = losing_to("experts_load")
    quiet = trial(best.recipe, given=best.outcomes[0], seen=analysis({Wall.COMMUNICATION: {"dp": 0.005 * STEP_US}}))
    assert claimed_fixes(knowledge(quiet), Phase.PROFILE) == []
    assert claimed_fixes(knowledge(trial(best.recipe)), Phase.PROFILE) == []  # nothing was traced
    before = claimed_fixes(knowledge(best), Phase.PROFILE)
    lost = [rejected(best, number, each.recipe) for number, each in enumerate(before, start=1)]
    tried = {each.recipe.digest() for each in lost}
    after = claimed_fixes(knowledge(best, *lost), Phase.PROFILE)
    assert not tried & {each.recipe.digest() for each in after}


def test_a_fix_pays_as_often_as_its_record_and_this_study_say() -> None:
    best, fix = losing_to("experts_load"), FIXES["even_experts"]
    lost = replace(trial(best.recipe, number=1, parent=best, fix=fix.name), verdict=Verdict.REJECTED)
    won = replace(lost, number=2, verdict=Verdict.ACCEPTED)
    assert knowledge(best).chance(fix) == fix.chance
    assert knowledge(best, lost).chance(fix) == pytest.approx(fix.chance * 2 / 3)
    assert knowledge(best, lost, won).chance(fix) == pytest.approx((fix.chance * 2 + 1) / 4)


SEES_FIXES: tuple[ModuleType, ...] = (
    neighbours_module,
    unmodelled_module,
    decomposition_module,
    ideas_module,
)


@pytest.fixture
def add_fix(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fix], None]:
    """Returns a function that adds a fix to the table, as a new file would."""

    def add(fix: Fix) -> None:
        for module in SEES_FIXES:
            monkeypatch.setattr(module, "FIXES", {**FIXES, fix.name: fix})

    return add


def new_fix(knob: str, value: Any, *phases: Phase, claims: tuple[Claim, ...] = ()) -> Fix:
    return Fix(
        name=f"new_{knob}",
        title="a new fix",
        page=FIXES["router_fusion"].page,
        phases=phases,
        claims=claims,
        knobs=(knob,),
        matches=becomes(knob, lambda now: now == value),
        precondition=lambda situation: "it is so already" if situation.knob(knob) == value else None,
        changes=lambda situation: [{knob: value}],
        chance=0.9,
    )


def test_a_new_fix_is_a_candidate_where_the_surrogate_predicts_it(add_fix: Callable[[Fix], None]) -> None:
    """Adds a fix with a change that nothing else proposes: every third layer recomputed."""
    changes = {"recompute_method": "block", "recompute_num_layers": 3}
    fix = new_fix("recompute_method", "block", Phase.PROFILE, Phase.RETUNE)
    fix = replace(fix, changes=lambda situation: [changes], knobs=tuple(changes))
    best = _recomputing()
    known = knowledge(best)
    made = best.recipe.replace(changes)
    assert made.digest() not in {move.recipe.digest() for move in neighbours_module.moves_of_fixes(known.situation)}
    add_fix(fix)
    near = list(neighbours_module.moves_of_fixes(known.situation))
    group = neighbours_module.neighbours(best.recipe, near, known.surrogate, known.avoid, min_fit=known.min_fit)
    assert group is not None
    found = list(best_first([group], known.avoid, runs=True))
    (candidate,) = [each for each in found if each.recipe.digest() == made.digest()]
    assert candidate.log_gain is not None
    assert candidate.log_gain > 0
    assert phase_of(known, made) in fix.phases
    assert [member.name for member in decomposition_module.members(best.recipe, made)] == [fix.name]


def test_a_new_fix_is_a_candidate_by_its_claim_where_the_surrogate_sees_nothing(
    add_fix: Callable[[Fix], None],
) -> None:
    claim = Claim(wall=Wall.COMMUNICATION, parts=("experts_load",), fraction=0.8, source="planted")
    fix = new_fix("CUDA_DEVICE_MAX_CONNECTIONS", 16, Phase.PROFILE, claims=(claim,))
    best = losing_to("experts_load")
    add_fix(fix)
    (found,) = [
        each
        for each in claimed_fixes(knowledge(best), Phase.PROFILE)
        if each.claimed is not None and each.claimed.fix is fix
    ]
    assert found.recipe.knob("CUDA_DEVICE_MAX_CONNECTIONS") == 16
    proposal = _first(best, Phase.PROFILE)
    assert proposal.fix == fix.name
    assert proposal.reason is not None
    assert proposal.reason.kind is ReasonKind.CLAIMED
    assert [share.fix for share in proposal.fixes] == [fix.name]


def _recomputing() -> Trial:
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    found = cpu_recipe(full)
    return trial(found, given=outcome(found, peak_gib=0.5), seen=analysis({Wall.MEMORY: {"recompute": 40_000.0}}))


def _first(best: Trial, phase: Phase) -> Proposal:
    proposal = Tuner(best.recipe, 1).propose(best, phase, [best])
    assert proposal is not None
    return proposal
