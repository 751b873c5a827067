"""The loop on fakes: what it tries, how often it measures, and how it judges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from analyzers.diagnosis import Cause, RankTime
from autotune.looks.reasons import sentence, verdict_text
from autotune.tuning.journal import read_study
from autotune.tuning.judge import judge
from policies.reason import Reason, ReasonKind
from policies.trial import Phase, Prediction, Status, Verdict
from tests.autotune.tuning.fakes import (
    FASTER,
    NO_IDEAS,
    OOM,
    SLOWER,
    FakeEngine,
    Idea,
    Rule,
    analysis_of,
    base_recipe,
    loop_in,
    micro_batches,
    outcome_of,
    trials_in,
)
from trainer.burst import Failure, FailureKind, Outcome
from trainer.recipe import Recipe


def scattered(recipe: Recipe) -> Outcome:
    """Returns steps that lie up to 25 % above and below 100 ms."""
    return outcome_of(100_000, spread=0.25)


@pytest.mark.parametrize(("rule", "bursts"), [(micro_batches, 1), (scattered, 2)], ids=["steady", "scattered"])
def test_the_first_recipe_that_runs_is_measured_twice_where_its_steps_scatter(
    rule: Rule, bursts: int, tmp_path: Path
) -> None:
    ended = loop_in(tmp_path, rule=rule).run()
    (base,) = trials_in(tmp_path)
    assert len(base.outcomes) == bursts
    assert base.accepted
    assert ended.status == "converged"
    assert ended.reason == NO_IDEAS


def test_a_clear_gain_is_accepted_at_once_and_a_loss_is_rejected(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=micro_batches, ideas=[SLOWER, FASTER]).run()
    base, slower, faster = trials_in(tmp_path)
    assert [slower.verdict, faster.verdict] == [Verdict.REJECTED, Verdict.ACCEPTED]
    assert faster.changes == {"micro_batch_size": (1, 4)}
    assert "decided by wall-clock time, far beyond the noise" in verdict_text(faster)
    assert read_study(tmp_path).best == faster
    assert read_study(tmp_path).reference == base


def test_no_later_phase_runs_while_no_recipe_does(tmp_path: Path) -> None:
    ideas = [Idea(changes={"micro_batch_size": 2}, phase=Phase.FIT), FASTER]
    ended = loop_in(tmp_path, rule=lambda recipe: OOM, ideas=ideas).run()
    assert [trial.proposal.phase for trial in trials_in(tmp_path)] == [Phase.FIT, Phase.FIT]
    assert [trial.status for trial in trials_in(tmp_path)] == [Status.OOM, Status.OOM]
    assert ended.status == "infeasible"
    assert "oom on rank 1: std::bad_alloc" in verdict_text(trials_in(tmp_path)[1])


def test_a_budget_that_ends_before_anything_ran_is_not_called_the_end_of_what_fits(tmp_path: Path) -> None:
    ideas = [Idea(changes={"micro_batch_size": size}, phase=Phase.FIT) for size in (2, 4)]
    for budget, left in ((2, True), (3, False)):
        ended = loop_in(tmp_path / str(budget), rule=lambda recipe: OOM, ideas=ideas, budget=budget).run()
        assert ended.status == "infeasible"
        assert ended.reason is not None
        assert ended.reason.figures.get("left", False) is left
    figures = {"tried": 1, "fewest_nodes": 2, "most_gpus": 8, "left": True, "bursts": 2, "budget": 2}
    assert sentence(Reason(kind=ReasonKind.NOTHING_FITS, figures=figures)).startswith(
        "no recipe ran: 1 tried, and others"
    )


def test_tracing_is_left_out_of_repeats(tmp_path: Path) -> None:
    engine = FakeEngine(micro_batches)
    loop_in(tmp_path, rule=micro_batches, engine=engine, ideas=[FASTER]).run()
    assert [burst.recipe.burst.trace_steps for burst in engine.ran] == [1, 1, 0, 0]


def test_the_next_burst_traces_late_ranks_and_those_whose_traces_were_lacked(tmp_path: Path) -> None:
    late = [
        RankTime(rank=n, clock_offset_us=0.0, step_us=9.0, own_us=9.0, waiting_us=0.0, late_us=n, late_to="dp")
        for n in range(4)
    ]
    cause = Cause(name="untraced_ranks", headline="", trace_ranks=[3, 5, 6, 7, 8, 9])
    seen = msgspec.structs.replace(analysis_of(), ranks=late)
    seen = msgspec.structs.replace(seen, diagnosis=msgspec.structs.replace(seen.diagnosis, cause=cause))
    engine = FakeEngine(micro_batches)
    loop = loop_in(tmp_path, rule=micro_batches, engine=engine, ideas=[FASTER])
    replace(loop, bench=replace(loop.bench, analyze=lambda paths: seen)).run()
    assert engine.ran[0].watch == ()
    assert engine.ran[-1].watch == (3, 2, 5, 6, 7)


def test_a_gain_found_late_sends_the_loop_back_to_scale(tmp_path: Path) -> None:
    """Offers the scale idea only after the profile idea, so that it takes a second pass."""
    possible_later = Idea(
        changes={"manual_gc": True}, phase=Phase.SCALE, when=lambda best: best.knob("micro_batch_size") == 4
    )
    loop_in(tmp_path, rule=micro_batches, ideas=[possible_later, FASTER]).run()
    phases = [trial.proposal.phase for trial in trials_in(tmp_path)]
    assert phases == [Phase.FIT, Phase.PROFILE, Phase.SCALE]


def test_a_close_candidate_is_repeated_in_turns_with_the_best(tmp_path: Path) -> None:
    def close(recipe: Recipe) -> float:
        return 100_000 if recipe.knob("micro_batch_size") == 1 else 98_000

    engine = FakeEngine(close)
    loop_in(tmp_path, rule=close, engine=engine, ideas=[FASTER]).run()
    order = [burst.recipe.knob("micro_batch_size") for burst in engine.ran]
    assert order[:4] == [1, 4, 1, 4]
    _, candidate = trials_in(tmp_path)
    assert candidate.accepted
    assert "interleaved repeats" in verdict_text(candidate)


def test_a_knob_that_did_not_act_is_a_noop(tmp_path: Path) -> None:
    def deaf(recipe: Recipe) -> Outcome:
        return outcome_of(100_000, acting={"micro_batch_size": 1})

    loop_in(tmp_path, rule=deaf, ideas=[FASTER]).run()
    _, candidate = trials_in(tmp_path)
    assert candidate.status is Status.NOOP
    assert candidate.verdict is Verdict.REJECTED
    assert verdict_text(candidate) == "micro_batch_size was set to 4, the built model has 1"


def test_an_illegal_proposal_costs_no_burst(tmp_path: Path) -> None:
    engine = FakeEngine(micro_batches)
    loop_in(tmp_path, rule=micro_batches, engine=engine, ideas=[Idea(changes={"micro_batch_size": 3})]).run()
    _, refused = trials_in(tmp_path)
    assert refused.bursts == ()
    assert refused.outcomes[0].failure is not None
    assert refused.outcomes[0].failure.kind is FailureKind.CONFIG
    assert len(engine.ran) == 1


def test_a_diverging_loss_curve_rejects_a_change_that_claims_to_leave_training_alone(tmp_path: Path) -> None:
    def parted(recipe: Recipe) -> Outcome:
        fast = recipe.knob("micro_batch_size") > 1
        return outcome_of(50_000 if fast else 100_000, loss=[7.0, 9.9 if fast else 6.9])

    loop_in(tmp_path, rule=parted, ideas=[FASTER]).run()
    _, candidate = trials_in(tmp_path)
    assert candidate.verdict is Verdict.REJECTED
    assert "loss at step 1 is 9.9, trial 0 had 6.9" in verdict_text(candidate)


def test_a_loss_curve_in_the_journal_ends_before_its_first_nan(tmp_path: Path) -> None:
    nan = Outcome(failure=Failure(kind=FailureKind.NAN, evidence="loss is nan"), loss=[7.0, float("nan"), 6.0], ranks=2)
    loop_in(tmp_path, rule=lambda recipe: nan).run()
    (base,) = trials_in(tmp_path)
    assert base.status is Status.FAILED
    assert base.outcomes[0].loss == [7.0]


def test_two_runs_of_one_study_are_the_same(tmp_path: Path) -> None:
    ideas = [SLOWER, FASTER]
    for name in ("a", "b"):
        loop_in(tmp_path / name, rule=micro_batches, ideas=ideas).run()
    assert trials_in(tmp_path / "a") == trials_in(tmp_path / "b")


def test_the_verdict_of_the_journal_is_the_judges(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=micro_batches, ideas=[FASTER]).run()
    base, faster = trials_in(tmp_path)
    assert judge(faster, against=base, trials=[base, faster]).verdict is faster.verdict
    assert base.recipe == base_recipe()


def test_a_gain_that_was_predicted_is_accepted_on_one_burst(tmp_path: Path) -> None:
    def close(recipe: Recipe) -> float:
        return 100_000 if recipe.knob("micro_batch_size") == 1 else 97_000

    predicted = Prediction(gain=0.03, gain_low=0.02, gain_high=0.04)
    loop_in(tmp_path, rule=close, ideas=[Idea(changes={"micro_batch_size": 4}, predicted=predicted)], budget=2).run()
    _, candidate = trials_in(tmp_path)
    assert candidate.accepted
    assert "within the prediction" in verdict_text(candidate)
