"""The tuner on simulated bursts: legal, new, leaving what is frozen, the same on a resume, in every phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analyzers import analyze
from analyzers.diagnosis import Wall
from autotune.looks.reasons import sentence
from policies.candidates.unmodelled import claimed_fixes
from policies.fixes import FIXES
from policies.reason import ReasonKind
from policies.surrogate import surrogate
from policies.trial import PHASES, Phase, Proposal, Status, Trial, Verdict
from policies.tuner import decision as decision_module
from policies.tuner.decision import MIN_EXPECTED_IMPROVEMENT
from policies.tuner.phases import phase_of
from policies.tuner.tuner import Tuner
from tests.policies.drawn import analysis, cpu_recipe, knowledge, out_of_memory, outcome, trial
from tests.rows import filled
from trainer.burst import Burst, Failure, FailureKind, Outcome
from trainer.engines.simulated import SimulatedEngine
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import check
from trainer.recipe.rules.examples import FULL

FROZEN = ("global_batch_size", "seq_length", "tensor_model_parallel_size")
AFTER_FIT = tuple(phase for phase in PHASES if phase is not Phase.FIT)


def base() -> Recipe:
    """Returns Qwen3-30B-A3B on a node of eight H200, much slower than necessary."""
    return Recipe.model_validate(
        {
            "name": "qwen",
            "model": "qwen3-30b-a3b",
            "cluster": {"gpu": "h200", "nodes": 1},
            "training": {"seq_length": 4096, "global_batch_size": 256, "micro_batch_size": 1},
            "parallelism": {"expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1},
            "knobs": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
            | {"use_distributed_optimizer": True, "moe_grouped_gemm": True},
            "burst": {"engine": "simulated"},
            "tune": {"freeze": FROZEN},
        }
    )


def under(limit_gib: float) -> Recipe:
    return base().model_copy(update={"cluster": base().cluster.model_copy(update={"memory_gib": limit_gib})})


def burst(proposal: Proposal, number: int, folder: Path) -> Trial:
    engine = SimulatedEngine(folder / "engine")
    found = engine.run(Burst(number=number, recipe=proposal.recipe, folder=folder / str(number), seed=1))
    return Trial(
        number=number,
        proposal=proposal,
        changes={},
        bursts=(number,),
        outcomes=(found,),
        status=Status.OK if found.ok else Status.OOM,
        analysis=analyze([folder / str(number)]) if found.ok else None,
        verdict=Verdict.ACCEPTED if found.ok else Verdict.REJECTED,
    )


def first(recipe: Recipe, folder: Path) -> Trial:
    return burst(Proposal(recipe=recipe, parent=None, phase=Phase.FIT, fix="base"), 0, folder)


def next_of(tuner: Tuner, best: Trial, trials: Sequence[Trial]) -> Proposal | None:
    found = (tuner.propose(best, phase, trials) for phase in PHASES)
    return next((proposal for proposal in found if proposal), None)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    """Returns the base and three proposals, each made from the fastest so far."""
    folder = tmp_path_factory.mktemp("walked")
    trials = [first(base(), folder)]
    tuner = Tuner(base(), 1)
    for number in (1, 2, 3):
        proposal = next_of(tuner, fastest(trials), trials)
        assert proposal is not None
        trials.append(burst(proposal, number, folder))
    return trials


@pytest.fixture(scope="module")
def tuner() -> Tuner:
    """Returns a tuner that tests share: its proposals depend on the trials alone."""
    return Tuner(base(), 1)


def fastest(trials: Sequence[Trial]) -> Trial:
    return max(trials, key=lambda each: each.outcomes[0].tokens_per_s_per_gpu or 0.0)


def test_proposals_are_legal_new_and_leave_alone_what_is_frozen(walked: list[Trial]) -> None:
    assert len({each.recipe.digest() for each in walked}) == len(walked)
    for one in walked:
        assert not [finding for finding in check(one.recipe) if finding.kind == "error"]
        assert all(one.recipe.knob(name) == base().knob(name) for name in FROZEN)


def test_what_is_proposed_is_faster(walked: list[Trial]) -> None:
    rates = [each.outcomes[0].tokens_per_s_per_gpu or 0.0 for each in walked]
    assert max(rates) > 1.5 * rates[0]


def test_a_prediction_has_an_interval_and_a_probability_of_fitting(walked: list[Trial]) -> None:
    for one in filled(walked[1:]):
        predicted = one.proposal.predicted
        assert predicted.gain is not None
        assert predicted.gain_low is not None
        assert predicted.gain_high is not None
        assert predicted.gain_bound is not None
        assert predicted.gain_low < predicted.gain < predicted.gain_high <= predicted.gain_bound
        assert predicted.fits_probability is not None
        assert 0.5 < predicted.fits_probability <= 1.0
        assert predicted.peak_gib is not None
        assert predicted.peak_gib == pytest.approx(max(one.outcomes[0].peak_gib), rel=0.2)


def test_a_proposal_is_named_by_fixes_or_knobs_that_move_what_differs(walked: list[Trial]) -> None:
    for one in filled(walked[1:]):
        proposal = one.proposal
        assert proposal.parent is not None
        moved = walked[proposal.parent].recipe.diff(proposal.recipe)
        assert proposal.fixes
        assert proposal.fix == proposal.fixes[0].fix
        assert all(share.fix in FIXES or share.fix in KNOBS for share in proposal.fixes)
        assert sorted(knob for share in proposal.fixes for knob in share.knobs) == sorted(moved)
        assert proposal.interaction is not None
        shares = sum(share.predicted_share or 0.0 for share in proposal.fixes)
        assert shares + proposal.interaction == pytest.approx(proposal.predicted.gain, abs=1e-9)


def test_the_reason_says_the_wall_what_moves_how_surely_and_on_what_ground(walked: list[Trial]) -> None:
    reason = walked[1].proposal.reason
    assert reason is not None
    assert reason.kind is ReasonKind.EXPECTED_IMPROVEMENT
    assert reason.figures["wall"] is not None
    assert reason.figures["learned"] == {"trials": 1, "traced": 1, "lessons": []}
    for said in ("% of the step", "predicted:", "throughput (90 %:", "P(fits)", "learned from 1 trial"):
        assert said in sentence(reason)


def test_a_phase_proposes_what_is_its_own(walked: list[Trial], tuner: Tuner) -> None:
    """Settings that the surrogate does not see wait until no phase has a candidate of its own."""
    known, found = knowledge(walked[0]), 0
    for phase in AFTER_FIT:
        proposal = tuner.propose(walked[0], phase, walked[:1])
        if proposal is not None:
            found += 1
            assert proposal.phase is phase
            assert not proposal.predicted.published
            assert proposal.reason is not None
            if proposal.reason.kind is ReasonKind.EXPECTED_IMPROVEMENT and phase is Phase.SCALE:
                assert phase_of(known, proposal.recipe) is phase
    assert found


def test_bursts_narrow_the_surrogate(walked: list[Trial], tuner: Tuner) -> None:
    table = tabulate([walked[3].recipe])
    spreads = [float(tuner.surrogate(walked[:count]).time.predict(table)[1][0]) for count in (0, 1, 4)]
    assert spreads == sorted(spreads, reverse=True)


def test_a_value_that_made_recipes_fail_is_left_alone(walked: list[Trial]) -> None:
    """Plays a missing package of a dispatcher: every recipe with it fails."""
    tuner = Tuner(base(), 1)
    backend = backend_of(next_of(tuner, walked[0], walked[:1]))
    assert backend != backend_of(walked[0].proposal)
    trials, crashed = [walked[0]], 0
    for number in range(1, 6):
        proposal = next_of(tuner, walked[0], trials)
        if proposal is None or backend_of(proposal) != backend:
            break
        crashed += 1
        crash = Outcome(failure=Failure(kind=FailureKind.CRASH, evidence="ModuleNotFoundError"))
        trials.append(
            replace(walked[1], number=number, proposal=proposal, outcomes=(crash,), status=Status.FAILED, analysis=None)
        )
    assert crashed <= 3


def backend_of(proposal: Proposal | None) -> tuple[str, str]:
    assert proposal is not None
    return proposal.recipe.knob("moe_token_dispatcher_type"), proposal.recipe.knob("moe_flex_dispatcher_backend")


def test_cpu_ranks_get_threads_for_the_cores_they_have_and_nothing_that_is_free_on_gpus_only(tmp_path: Path) -> None:
    given = first(cpu_recipe(FULL), tmp_path)
    for cores, most in ((None, 1), (1.0, 1), (4.0, 4)):
        found = msgspec.structs.replace(given.outcomes[0], cores_per_rank=cores)
        measured = replace(given, outcomes=(found,))
        proposal = next_of(Tuner(cpu_recipe(FULL), 1), measured, [measured])
        assert proposal is not None
        assert proposal.recipe.knob("threads_per_rank") <= most
        assert proposal.recipe.knob("recompute_granularity") is None
        assert not proposal.recipe.knob("manual_gc")


def test_a_fresh_tuner_proposes_the_same(walked: list[Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    known = walked[:3]
    fresh, used = Tuner(base(), 1), Tuner(base(), 1)
    next_of(used, walked[0], walked[:1])
    proposed = next_of(used, fastest(known), known)
    monkeypatch.setattr(surrogate, "_KEPT", [])  # so that it fits anew
    assert next_of(fresh, fastest(known), known) == proposed


def test_a_decision_is_worked_out_once_for_its_phases(walked: list[Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Phase] = []

    def counted(knowledge: Any, phase: Phase) -> object:
        asked.append(phase)
        return claimed_fixes(knowledge, phase)

    monkeypatch.setattr(decision_module, "claimed_fixes", counted)
    tuner = Tuner(base(), 1)
    for phase in PHASES:
        tuner.propose(walked[0], phase, walked[:1])
    assert asked == [Phase.PROFILE]


def test_where_nothing_runs_the_fastest_that_surely_fits_is_proposed() -> None:
    tuner = Tuner(base(), 1)
    given = trial(base(), given=out_of_memory(base()), verdict=Verdict.REJECTED)
    proposal = tuner.propose(given, Phase.FIT, [given])
    assert proposal is not None
    assert proposal.predicted.fits_probability is not None
    assert proposal.predicted.fits_probability >= 0.9
    assert proposal.reason is not None
    assert proposal.reason.kind is ReasonKind.FITS_FASTEST
    assert "ran out of memory" in sentence(proposal.reason)
    assert tuner.propose(given, Phase.SCALE, [given]) is None


def test_the_reference_is_the_cheapest_change_of_the_recipe_as_given() -> None:
    given = trial(under(60.0), given=out_of_memory(under(60.0)), verdict=Verdict.REJECTED)
    tuner = Tuner(given.recipe, 1)
    found, fastest_first = tuner.reference(given, [given]), tuner.propose(given, Phase.FIT, [given])
    assert found is not None
    assert fastest_first is not None
    assert found.reason is not None
    assert found.reason.kind is ReasonKind.REFERENCE
    assert len(given.recipe.diff(found.recipe)) <= len(given.recipe.diff(fastest_first.recipe))


def test_where_nothing_can_fit_nothing_is_proposed() -> None:
    given = trial(under(8.0), given=out_of_memory(under(8.0)), verdict=Verdict.REJECTED)
    assert Tuner(given.recipe, 1).propose(given, Phase.FIT, [given]) is None
    reason = Tuner(given.recipe, 1).why_stopped(given, [given])
    assert reason.kind is ReasonKind.NOTHING_FITS
    assert "of these nodes" in sentence(reason)


def test_where_no_layout_surely_fits_the_optimizer_is_offloaded() -> None:
    given = trial(under(48.0), given=out_of_memory(under(48.0)), verdict=Verdict.REJECTED)
    proposal = Tuner(given.recipe, 1).propose(given, Phase.FIT, [given])
    assert proposal is not None
    assert "optimizer_offload" in {share.fix for share in proposal.fixes}
    assert proposal.predicted.fits_probability is not None
    assert proposal.predicted.fits_probability > 0.9


def test_a_base_that_failed_for_another_reason_is_not_fitted() -> None:
    crash = Outcome(failure=Failure(kind=FailureKind.CRASH, evidence="Segmentation fault"))
    given = replace(trial(base(), given=crash, verdict=Verdict.REJECTED), status=Status.FAILED)
    assert next_of(Tuner(base(), 1), given, [given]) is None
    reason = Tuner(base(), 1).why_stopped(given, [given])
    assert (reason.kind, reason.figures["kind"]) == (ReasonKind.FAILED, "crash")


def test_fit_is_over_as_soon_as_something_runs(walked: list[Trial], tuner: Tuner) -> None:
    assert tuner.propose(walked[0], Phase.FIT, walked[:1]) is None


def test_the_reason_of_the_end_says_what_was_left(walked: list[Trial], tuner: Tuner) -> None:
    reason = tuner.why_stopped(fastest(walked), walked)
    assert reason.kind is ReasonKind.NOT_WORTH_A_BURST
    assert reason.figures["limit"] == MIN_EXPECTED_IMPROVEMENT
    assert reason.figures["expected_improvement"] >= 0


def test_every_fix_that_was_considered_has_a_reason_and_its_figures(walked: list[Trial], tuner: Tuner) -> None:
    best = fastest(walked)
    ideas = {idea.fix: idea for idea in tuner.rejected_ideas(best, walked)}
    searched = {name for name, fix in FIXES.items() if set(fix.phases) != {Phase.FIT}}
    assert set(ideas) == searched
    for idea in ideas.values():
        assert idea.phase in FIXES[idea.fix].phases
        assert sentence(idea.reason)
        asked = idea.reason.kind not in (ReasonKind.NOT_APPLICABLE, ReasonKind.ILLEGAL)
        assert (idea.gain is not None) is asked
        if idea.gain is not None:
            assert idea.gain_low is not None
            assert idea.gain_high is not None
            assert idea.fits_probability is not None
            assert idea.gain_low < idea.gain < idea.gain_high
    assert len({idea.reason.kind for idea in ideas.values()}) >= 4


def test_a_change_that_lost_is_rejected_for_that_and_nothing_is_considered_while_nothing_runs() -> None:
    best = trial(cpu_recipe(), seen=analysis({Wall.COMPUTE: {"below_attainable": 60_000.0}}))
    lost = trial(
        cpu_recipe({"micro_batch_size": 4}),
        number=1,
        parent=best,
        phase=Phase.PROFILE,
        given=outcome(best.recipe, tokens_per_s=500.0),
        verdict=Verdict.REJECTED,
    )
    more = trial(cpu_recipe({"micro_batch_size": 2}), number=2, parent=best, verdict=Verdict.REJECTED)
    ideas = Tuner(cpu_recipe(), 1).rejected_ideas(best, [best, lost, more])
    reason = next(idea.reason for idea in ideas if idea.fix == "micro_batch_up")
    assert reason.kind in (ReasonKind.ALREADY_TRIED, ReasonKind.LOST_BEFORE)
    died = trial(cpu_recipe(), given=out_of_memory(cpu_recipe()))
    assert Tuner(cpu_recipe(), 1).rejected_ideas(died, [died]) == ()
