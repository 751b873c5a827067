"""The policy that learns its cluster, on simulated bursts: legal, new, leaving what is frozen, always the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from policies.consider import Candidate, Idea, consider
from policies.gate import closed_form_gib
from policies.learned import WORTH, LearnedPolicy
from policies.prospects import LEFT_ON, LIKELY, asked_of_fits, gives_up
from policies.view import View, view_of

from analyzers import analyze
from policies import learned
from policies.changes.fix import Fix
from policies.trial import Phase, Proposal, Status, Trial, Verdict
from policies.tuner.phases import PHASES
from tests.policies.drawn import cpu_recipe, out_of_memory, trial
from trainer.burst import Burst, Failure, FailureKind, Outcome
from trainer.engines.simulated import SimulatedEngine
from trainer.estimate.candidates import tabulate
from trainer.recipe import Recipe
from trainer.recipe.rules import check
from trainer.recipe.rules.examples import FULL

FROZEN = ("global_batch_size", "seq_length", "tensor_model_parallel_size")


def base() -> Recipe:
    """Qwen3-30B-A3B on a node of eight H200, much slower than it need be."""
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


def burst(proposal: Proposal, number: int, folder: Path) -> Trial:
    engine = SimulatedEngine(folder / "engine")
    outcome = engine.run(Burst(number=number, recipe=proposal.recipe, folder=folder / str(number), seed=1))
    return Trial(
        number=number,
        proposal=proposal,
        changes={},
        bursts=(number,),
        outcomes=(outcome,),
        status=Status.OK if outcome.ok else Status.OOM,
        analysis=analyze([folder / str(number)]) if outcome.ok else None,
        verdict=Verdict.ACCEPTED if outcome.ok else Verdict.REJECTED,
    )


def first(recipe: Recipe, folder: Path) -> Trial:
    return burst(Proposal(recipe=recipe, parent=None, phase=Phase.FIT, fix="base", because="given"), 0, folder)


def next_of(policy: LearnedPolicy, best: Trial, trials: Sequence[Trial]) -> Proposal | None:
    found = (policy.propose(best, phase, trials) for phase in PHASES)
    return next((proposal for proposal in found if proposal), None)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> list[Trial]:
    """The base and three proposals, each made from the fastest so far."""
    folder = tmp_path_factory.mktemp("walked")
    trials = [first(base(), folder)]
    policy = LearnedPolicy(base(), 1)
    for number in (1, 2, 3):
        proposal = next_of(policy, _best(trials), trials)
        assert proposal is not None
        trials.append(burst(proposal, number, folder))
    return trials


def _best(trials: Sequence[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial.outcomes[0].tokens_per_s_per_gpu or 0.0)


def test_proposals_are_legal_new_and_leave_alone_what_is_frozen(walked: list[Trial]) -> None:
    assert len({trial.recipe.digest() for trial in walked}) == len(walked)
    for one in walked:
        assert not [finding for finding in check(one.recipe) if finding.kind == "error"]
        assert all(one.recipe.knob(name) == base().knob(name) for name in FROZEN)


def test_what_is_proposed_is_faster(walked: list[Trial]) -> None:
    rates = [trial.outcomes[0].tokens_per_s_per_gpu or 0.0 for trial in walked]
    assert max(rates) > 1.5 * rates[0]


def test_a_prediction_has_an_interval_and_a_probability_of_fitting(walked: list[Trial]) -> None:
    for one in walked[1:]:
        predicted = one.proposal.predicted
        assert predicted.gain is not None
        assert predicted.gain_low is not None
        assert predicted.gain_high is not None
        assert predicted.gain_low < predicted.gain < predicted.gain_high
        assert predicted.fits_probability is not None
        assert 0.5 < predicted.fits_probability <= 1.0
        assert predicted.peak_gib is not None
        measured = max(one.outcomes[0].peak_gib)
        assert predicted.peak_gib == pytest.approx(measured, rel=0.2)


def test_the_words_say_the_wall_what_moves_how_surely_and_on_what_ground(walked: list[Trial]) -> None:
    because = walked[1].proposal.because
    for said in (
        "% of the step",
        "predicted:",
        "throughput (90 %:",
        "P(fits)",
        "next candidate",
        "learned from 1 trial",
    ):
        assert said in because


def test_a_fresh_policy_proposes_the_same(walked: list[Trial]) -> None:
    known = walked[:3]
    fresh, used = LearnedPolicy(base(), 1), LearnedPolicy(base(), 1)
    next_of(used, walked[0], walked[:1])
    assert next_of(fresh, _best(known), known) == next_of(used, _best(known), known)


def test_what_cures_a_wait_is_considered_once_for_the_phases_of_a_decision(
    walked: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    considered: list[str] = []

    def counted(fix: Fix, view: View, phase: Phase) -> Candidate | Idea:
        considered.append(fix.name)
        return consider(fix, view, phase)

    monkeypatch.setattr(learned, "consider", counted)
    policy = LearnedPolicy(base(), 1)
    for phase in (Phase.SCALE, Phase.RETUNE):
        policy.propose(walked[0], phase, walked[:1])
    assert considered
    assert len(considered) == len(set(considered))


def test_bursts_narrow_what_is_believed(walked: list[Trial]) -> None:
    policy = LearnedPolicy(base(), 1)
    recipe = walked[3].recipe
    spreads = [float(policy.belief(walked[:count]).time.predict(tabulate([recipe]))[1][0]) for count in (0, 1, 4)]
    assert spreads == sorted(spreads, reverse=True)


def test_where_nothing_runs_the_fastest_that_surely_fits_is_proposed() -> None:
    policy = LearnedPolicy(base(), 1)
    given = trial(base(), given=out_of_memory(base()), verdict=Verdict.REJECTED)
    proposal = policy.propose(given, Phase.FIT, [given])
    assert proposal is not None
    assert proposal.predicted.fits_probability is not None
    assert proposal.predicted.fits_probability >= 0.9
    assert "ran out of memory" in proposal.because
    assert policy.propose(given, Phase.SCALE, [given]) is None


def test_where_nothing_can_fit_nothing_is_proposed() -> None:
    small = base().model_copy(update={"cluster": base().cluster.model_copy(update={"memory_gib": 8.0})})
    given = trial(small, given=out_of_memory(small), verdict=Verdict.REJECTED)
    assert LearnedPolicy(small, 1).propose(given, Phase.FIT, [given]) is None
    assert "of these nodes" in LearnedPolicy(small, 1).why_stopped(given, [given])


def test_where_no_plan_surely_fits_the_optimizer_is_offloaded() -> None:
    small = base().model_copy(update={"cluster": base().cluster.model_copy(update={"memory_gib": 48.0})})
    given = trial(small, given=out_of_memory(small), verdict=Verdict.REJECTED)
    proposal = LearnedPolicy(small, 1).propose(given, Phase.FIT, [given])
    assert proposal is not None
    assert proposal.fix == "optimizer_offload"
    assert proposal.predicted.fits_probability is not None
    assert proposal.predicted.fits_probability > 0.9


def test_what_made_a_recipe_fail_is_left_alone(walked: list[Trial]) -> None:
    """As where a dispatcher's package is missing: whatever wants it fails."""
    policy = LearnedPolicy(base(), 1)
    backend = policy_backend(next_of(policy, walked[0], walked[:1]))
    assert backend != policy_backend(walked[0].proposal)
    trials, failed = [walked[0]], 0
    for number in range(1, 6):
        proposal = next_of(policy, walked[0], trials)
        if proposal is None or policy_backend(proposal) != backend:
            break
        failed += 1
        crash = Outcome(failure=Failure(kind=FailureKind.CRASH, evidence="ModuleNotFoundError"))
        trials.append(
            replace(walked[1], number=number, proposal=proposal, outcomes=(crash,), status=Status.FAILED, analysis=None)
        )
    assert failed <= 3


def policy_backend(proposal: Proposal | None) -> tuple[str, str]:
    assert proposal is not None
    recipe = proposal.recipe
    return recipe.knob("moe_token_dispatcher_type"), recipe.knob("moe_flex_dispatcher_backend")


def test_fit_is_over_as_soon_as_something_runs(walked: list[Trial]) -> None:
    assert LearnedPolicy(base(), 1).propose(walked[0], Phase.FIT, walked[:1]) is None


def test_cpu_ranks_get_threads_for_the_cores_they_have_and_nothing_that_is_free_on_gpus_only(tmp_path: Path) -> None:
    given = first(cpu_recipe(FULL), tmp_path)
    for cores, most in ((None, 1), (1.0, 1), (4.0, 4)):
        outcome = msgspec.structs.replace(given.outcomes[0], cores_per_rank=cores)
        ran = replace(given, outcomes=(outcome,))
        proposal = next_of(LearnedPolicy(cpu_recipe(FULL), 1), ran, [ran])
        assert proposal is not None
        assert proposal.recipe.knob("threads_per_rank") <= most
        assert proposal.recipe.knob("recompute_granularity") is None
        assert not proposal.recipe.knob("manual_gc")


def test_why_it_stopped_says_what_was_left(walked: list[Trial]) -> None:
    said = LearnedPolicy(base(), 1).why_stopped(_best(walked), walked)
    assert said.startswith("the next burst is expected to gain ")
    assert float(said.split("gain ", 1)[1].removeprefix("less than ").split(" %")[0]) >= 0.01
    assert "at most" not in said


def test_another_sampler_that_has_nothing_left_is_said_to_have_ended_the_search(walked: list[Trial]) -> None:
    given = with_sampler(walked[0], "tpe")
    said = LearnedPolicy(given.recipe, 1).why_stopped(given, [given])
    assert said.endswith("but tpe (tune.sampler) has nothing left to propose")


def with_sampler(one: Trial, sampler: str) -> Trial:
    tune = one.recipe.tune.model_copy(update={"sampler": sampler})
    return replace(one, proposal=replace(one.proposal, recipe=one.recipe.model_copy(update={"tune": tune})))


def test_the_more_proposals_have_run_out_of_memory_the_surer_the_next_must_be() -> None:
    """The recipe as given is nobody's proposal: that it ran out says nothing of how sure the belief was."""
    given = trial(base(), given=out_of_memory(base()))
    proposed = [trial(base(), number=number, parent=given, given=out_of_memory(base())) for number in (1, 2)]
    asked = [asked_of_fits([given, *proposed[:count]]) for count in range(3)]
    assert asked == pytest.approx([LIKELY, 0.9, 0.98])


def test_no_burst_is_paid_to_give_up_what_costs_nothing() -> None:
    best = base().replace(
        {"manual_gc": True, "manual_gc_interval": 100, "moe_router_fusion": True, "cpu_affinity": "spread"}
    )
    assert gives_up(best, best.replace({"manual_gc": False}))
    assert gives_up(best, best.replace({"moe_router_fusion": False, "cpu_affinity": "none"}))
    assert not gives_up(best, best.replace({"manual_gc": False, "micro_batch_size": 2}))
    assert not gives_up(best, best.replace({"manual_gc_interval": 300}))
    assert LEFT_ON["overlap_grad_reduce"] is True


def test_what_nothing_is_believed_of_waits_until_no_phase_has_a_prospect(walked: list[Trial]) -> None:
    policy, best = LearnedPolicy(base(), 1), walked[0]
    _, ranked, _ = policy._ranked(view_of(best, walked[:1], closed_form_gib))
    assert ranked[0].worth >= WORTH
    found = [proposal for phase in PHASES if (proposal := policy.propose(best, phase, walked[:1]))]
    assert found
    assert all("the estimate does not model" not in proposal.because for proposal in found)
