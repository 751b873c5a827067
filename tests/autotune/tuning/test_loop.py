"""The loop on fakes: what it tries, how often it measures, when it stops, what it does about faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from analyzers.diagnosis import Cause, RankTime
from autotune.tuning.journal import read_study
from autotune.tuning.judge import judge
from policies.trial import Phase, Prediction, Proposal, Status, Trial, Verdict
from tests.autotune.tuning.fakes import (
    FASTER,
    OOM,
    SLOWER,
    FakeEngine,
    FakePolicy,
    Idea,
    Rule,
    analysis_of,
    base_recipe,
    loop_in,
    micro_batches,
    outcome_of,
    trials_in,
)
from trainer.burst import Burst, Failure, FailureKind, Outcome
from trainer.errors import ToolError
from trainer.recipe import Recipe

LOST = Outcome(failure=Failure(kind=FailureKind.INFRASTRUCTURE, evidence="no port is free"), ranks=2)


def scattered(recipe: Recipe) -> Outcome:
    """Steps that differ by a quarter of their length."""
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
    assert ended.because == "the list is at its end"


def test_a_clear_gain_is_accepted_at_once_and_a_loss_is_rejected(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=micro_batches, ideas=[SLOWER, FASTER]).run()
    base, slower, faster = trials_in(tmp_path)
    assert [slower.verdict, faster.verdict] == [Verdict.REJECTED, Verdict.ACCEPTED]
    assert faster.changes == {"micro_batch_size": (1, 4)}
    assert "decided by wall-clock time, far beyond the noise" in faster.verdict_because
    assert read_study(tmp_path).best == faster
    assert read_study(tmp_path).reference == base


def test_no_later_phase_runs_while_no_recipe_does(tmp_path: Path) -> None:
    ideas = [Idea(changes={"micro_batch_size": 2}, phase=Phase.FIT), FASTER]
    ended = loop_in(tmp_path, rule=lambda recipe: OOM, ideas=ideas).run()
    assert [trial.proposal.phase for trial in trials_in(tmp_path)] == [Phase.FIT, Phase.FIT]
    assert [trial.status for trial in trials_in(tmp_path)] == [Status.OOM, Status.OOM]
    assert ended.status == "infeasible"
    assert "oom on rank 1: std::bad_alloc" in trials_in(tmp_path)[1].verdict_because


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


def test_at_the_end_reference_and_best_are_measured_again_in_turns(tmp_path: Path) -> None:
    engine = FakeEngine(micro_batches)
    loop_in(tmp_path, rule=micro_batches, engine=engine, ideas=[FASTER, SLOWER]).run()
    assert [trial.number for trial in trials_in(tmp_path) if len(trial.outcomes) > 1] == [0, 1]
    assert [burst.recipe.knob("micro_batch_size") for burst in engine.ran] == [1, 4, 4, 1, 4]


def test_the_result_is_made_sure_by_three_pairs_at_most(tmp_path: Path) -> None:
    dice = random.Random(7)

    def drifting(recipe: Recipe) -> Outcome:
        return outcome_of(micro_batches(recipe) * dice.uniform(0.8, 1.2))

    engine = FakeEngine(drifting)
    loop_in(tmp_path, rule=drifting, engine=engine, ideas=[FASTER]).run()
    assert [len(trial.outcomes) for trial in trials_in(tmp_path)] == [1 + 3, 1 + 3]


class Unsure(FakePolicy):
    """Has nothing to propose until repeats have shown how far two bursts of the base lie apart, and one thing then."""

    def propose(self, best: Trial, phase: Phase, trials: Sequence[Trial]) -> Proposal | None:
        return super().propose(best, phase, trials) if best.number != 1 or len(best.outcomes) > 1 else None


def test_what_the_last_pairs_make_worth_a_burst_is_tried_and_confirmed(tmp_path: Path) -> None:
    ideas = [Idea(changes={"micro_batch_size": 2}), FASTER]
    loop = loop_in(tmp_path, rule=micro_batches)
    replace(loop, policy=Unsure(ideas)).run()
    history = read_study(tmp_path)
    assert [trial.recipe.knob("micro_batch_size") for trial in history.trials] == [1, 2, 4]
    assert [len(trial.outcomes) for trial in history.trials] == [3, 2, 2]
    assert history.best is not None
    assert history.best.number == 2


def test_no_pair_is_paid_for_beyond_the_budget(tmp_path: Path) -> None:
    engine = FakeEngine(micro_batches)
    loop_in(tmp_path, rule=micro_batches, engine=engine, ideas=[FASTER], budget=3).run()
    assert len(engine.ran) == 3


def test_a_gain_found_late_sends_the_loop_back_to_scale(tmp_path: Path) -> None:
    """The scale idea is only possible after the profile idea: a second pass has to come by."""
    possible_later = Idea(
        changes={"manual_gc": True}, phase=Phase.SCALE, when=lambda best: best.knob("micro_batch_size") == 4
    )
    loop_in(tmp_path, rule=micro_batches, ideas=[possible_later, FASTER]).run()
    phases = [trial.proposal.phase for trial in trials_in(tmp_path)]
    assert phases == [Phase.FIT, Phase.PROFILE, Phase.SCALE]


def test_the_budget_counts_repeats_and_is_never_exceeded(tmp_path: Path) -> None:
    engine = FakeEngine(micro_batches)
    ideas = [Idea(changes={"manual_gc": True, "manual_gc_interval": interval}) for interval in range(1, 30)]
    ended = loop_in(tmp_path, rule=micro_batches, ideas=ideas, engine=engine, budget=4, patience=99).run()
    assert ended.status == "budget"
    assert len(engine.ran) == 4
    assert all(trial.verdict for trial in trials_in(tmp_path))


def test_a_budget_of_one_still_judges_the_base(tmp_path: Path) -> None:
    ended = loop_in(tmp_path, rule=micro_batches, budget=1).run()
    (base,) = trials_in(tmp_path)
    assert base.accepted
    assert ended.status == "budget"


def test_patience_ends_a_search_that_gains_nothing(tmp_path: Path) -> None:
    ideas = [Idea(changes={"manual_gc": True, "manual_gc_interval": interval}) for interval in range(1, 30)]
    ended = loop_in(tmp_path, rule=micro_batches, ideas=ideas, patience=3).run()
    assert len(trials_in(tmp_path)) == 1 + 3
    assert ended.status == "converged"
    assert "3 recipes in a row brought no gain (tune.patience)" in ended.because


def test_out_of_patience_a_fix_whose_bound_beats_the_noise_is_still_tried(tmp_path: Path) -> None:
    dull = [Idea(changes={"manual_gc": True, "manual_gc_interval": interval}) for interval in (1, 2)]
    wide = Idea(changes={"manual_gc": True, "manual_gc_interval": 3}, phase=Phase.RETUNE, bound=0.5)
    narrow = Idea(changes={"manual_gc": True, "manual_gc_interval": 4}, phase=Phase.RETUNE, bound=0.001)
    loop_in(tmp_path, rule=micro_batches, ideas=[*dull, wide, narrow], patience=2).run()
    assert [trial.recipe.knob("manual_gc_interval") for trial in trials_in(tmp_path)[1:]] == [1, 2, 3]


def test_a_close_candidate_is_repeated_in_turns_with_the_best(tmp_path: Path) -> None:
    def close(recipe: Recipe) -> float:
        return 100_000 if recipe.knob("micro_batch_size") == 1 else 98_000

    engine = FakeEngine(close)
    loop_in(tmp_path, rule=close, engine=engine, ideas=[FASTER]).run()
    order = [burst.recipe.knob("micro_batch_size") for burst in engine.ran]
    assert order[:4] == [1, 4, 1, 4]
    _, candidate = trials_in(tmp_path)
    assert candidate.accepted
    assert "interleaved repeats" in candidate.verdict_because


def test_a_knob_that_did_not_act_is_a_noop(tmp_path: Path) -> None:
    def deaf(recipe: Recipe) -> Outcome:
        return outcome_of(100_000, acting={"micro_batch_size": 1})

    loop_in(tmp_path, rule=deaf, ideas=[FASTER]).run()
    _, candidate = trials_in(tmp_path)
    assert candidate.status is Status.NOOP
    assert candidate.verdict is Verdict.REJECTED
    assert candidate.verdict_because == "micro_batch_size was set to 4, the built model has 1"


def test_an_illegal_proposal_costs_no_burst(tmp_path: Path) -> None:
    engine = FakeEngine(micro_batches)
    loop_in(tmp_path, rule=micro_batches, engine=engine, ideas=[Idea(changes={"micro_batch_size": 3})]).run()
    _, refused = trials_in(tmp_path)
    assert refused.bursts == ()
    assert refused.outcomes[0].failure is not None
    assert refused.outcomes[0].failure.kind is FailureKind.CONFIG
    assert len(engine.ran) == 1


def test_a_parted_loss_curve_rejects_a_change_that_claims_to_leave_training_alone(tmp_path: Path) -> None:
    def parted(recipe: Recipe) -> Outcome:
        fast = recipe.knob("micro_batch_size") > 1
        return outcome_of(50_000 if fast else 100_000, loss=[7.0, 9.9 if fast else 6.9])

    loop_in(tmp_path, rule=parted, ideas=[FASTER]).run()
    _, candidate = trials_in(tmp_path)
    assert candidate.verdict is Verdict.REJECTED
    assert "loss at step 1 is 9.9, trial 0 had 6.9" in candidate.verdict_because


class Faulty(FakeEngine):
    """Loses the bursts whose place in the order of runs is in `lost`."""

    def __init__(self, lost: set[int], by: Outcome = LOST) -> None:
        super().__init__(micro_batches)
        self.lost, self.by = lost, by

    def run(self, burst: Burst) -> Outcome:
        outcome = super().run(burst)
        return self.by if len(self.ran) in self.lost else outcome


def test_a_burst_lost_to_the_machine_is_run_once_more_under_its_number(tmp_path: Path) -> None:
    engine = Faulty({1})
    loop_in(tmp_path, rule=micro_batches, engine=engine).run()
    history = read_study(tmp_path)
    assert [burst.number for burst in engine.ran] == [1, 1]
    assert [lost.burst for lost in history.lost] == [1]
    assert history.trials[0].status is Status.OK
    assert (tmp_path / "bursts" / "0001.lost").is_dir()


def test_a_machine_that_is_down_stops_the_study_instead_of_blaming_recipes(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"3 bursts in a row .* not the recipe's: no port is free"):
        loop_in(tmp_path, rule=micro_batches, engine=Faulty({1, 2, 3})).run()
    loop_in(tmp_path, rule=micro_batches).run()
    assert trials_in(tmp_path)[0].accepted


def test_a_machine_that_is_down_is_not_a_second_recipes_fault_either(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="3 bursts in a row"):
        loop_in(tmp_path, rule=micro_batches, engine=Faulty({2, 3, 4}), ideas=[SLOWER, FASTER]).run()
    assert [trial.status for trial in trials_in(tmp_path)] == [Status.OK, Status.FAILED]
    loop_in(tmp_path, rule=micro_batches, engine=Faulty({2}), ideas=[SLOWER, FASTER]).run()
    assert read_study(tmp_path).lost_in_a_row == 0


KILLED = Outcome(failure=Failure(kind=FailureKind.CRASH, evidence="rank 1 was killed by SIGKILL", killed=True), ranks=2)


def test_a_first_recipe_whose_rank_somebody_kills_is_run_again_and_never_called_infeasible(tmp_path: Path) -> None:
    loop_in(tmp_path / "once", rule=micro_batches, engine=Faulty({1}, KILLED)).run()
    assert trials_in(tmp_path / "once")[0].accepted
    with pytest.raises(ToolError, match="no recipe has run so far: again a rank was killed from outside") as it:
        loop_in(tmp_path / "twice", rule=micro_batches, engine=Faulty({1, 2}, KILLED)).run()
    assert "continue with --resume" in str(it.value)
    assert [lost.burst for lost in read_study(tmp_path / "twice").lost] == [1, 1]
    loop_in(tmp_path / "twice", rule=micro_batches).run()
    assert trials_in(tmp_path / "twice")[0].accepted


def test_a_later_recipe_whose_rank_is_killed_twice_has_failed(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=micro_batches, engine=Faulty({2, 3}, KILLED), ideas=[SLOWER, FASTER]).run()
    assert [trial.status for trial in trials_in(tmp_path)] == [Status.OK, Status.FAILED, Status.OK]
    assert len(read_study(tmp_path).lost) == 1


def test_one_recipe_the_machine_cannot_run_is_passed_over(tmp_path: Path) -> None:
    loop_in(tmp_path, rule=micro_batches, engine=Faulty({2, 3}), ideas=[SLOWER, FASTER]).run()
    assert [trial.status for trial in trials_in(tmp_path)] == [Status.OK, Status.FAILED, Status.OK]


def test_a_loss_that_is_no_number_survives_the_journal(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("hours", "bursts"), [(0.0001, 1), (0.0012, 2), (1.0, 5)])
def test_no_burst_is_begun_that_would_cost_more_gpu_hours_than_there_are(
    hours: float, bursts: int, tmp_path: Path
) -> None:
    """A burst of two ranks takes a second by the fake clock: 0.00056 rank-hours."""
    engine = FakeEngine(micro_batches)
    ended = loop_in(tmp_path, rule=micro_batches, engine=engine, ideas=[FASTER, SLOWER], max_gpu_hours=hours).run()
    assert len(engine.ran) == bursts
    assert ended.status == ("budget" if bursts < 5 else "converged")
    assert "rank-hours are used" in ended.because or bursts == 5


def test_no_burst_is_begun_that_would_end_after_the_time(tmp_path: Path) -> None:
    engine = FakeEngine(micro_batches)
    ended = loop_in(tmp_path, rule=micro_batches, engine=engine, ideas=[FASTER, SLOWER], until=12.0).run()
    assert 1 <= len(engine.ran) < 5
    assert (ended.status, ended.because) == ("budget", "the deadline was reached")


def test_what_was_left_open_is_looked_at_again_when_nothing_else_is_left(tmp_path: Path) -> None:
    """Foretold with an interval, so not repeated at once: 1.2 % is inside what one burst a side can tell."""

    def close(recipe: Recipe) -> float:
        return 100_000 if recipe.knob("micro_batch_size") == 1 else 98_800

    engine = FakeEngine(close)
    predicted = Prediction(gain=0.001, gain_low=-0.05, gain_high=0.05)
    loop_in(
        tmp_path, rule=close, engine=engine, ideas=[Idea(changes={"micro_batch_size": 4}, predicted=predicted)]
    ).run()
    order = [burst.recipe.knob("micro_batch_size") for burst in engine.ran]
    assert order == [1, 4, 1, 4]
    _, candidate = trials_in(tmp_path)
    assert candidate.accepted
    assert read_study(tmp_path).best == candidate


def test_a_gain_that_was_predicted_is_accepted_on_one_burst(tmp_path: Path) -> None:
    def close(recipe: Recipe) -> float:
        return 100_000 if recipe.knob("micro_batch_size") == 1 else 97_000

    predicted = Prediction(gain=0.03, gain_low=0.02, gain_high=0.04)
    loop_in(tmp_path, rule=close, ideas=[Idea(changes={"micro_batch_size": 4}, predicted=predicted)], budget=2).run()
    _, candidate = trials_in(tmp_path)
    assert candidate.accepted
    assert "within the prediction" in candidate.verdict_because


SMALL_GAIN = Prediction(gain=0.02, gain_low=-0.01, gain_high=0.05, fits_probability=1.0)


@pytest.mark.parametrize(("hours", "tried"), [(None, 2), (1.0, 2), (0.0001, 1)], ids=["no plan", "long", "short"])
def test_a_burst_that_costs_more_than_the_planned_training_can_save_is_not_paid_for(
    hours: float | None, tried: int, tmp_path: Path
) -> None:
    """A burst here is a second or two of two ranks; two percent of a thousandth of an hour are less."""
    recipe = base_recipe()
    planned = recipe.model_copy(update={"tune": recipe.tune.model_copy(update={"planned_gpu_hours": hours})})
    ideas = [Idea(changes={"micro_batch_size": 4}, predicted=SMALL_GAIN)]
    ended = loop_in(tmp_path, rule=micro_batches, ideas=ideas, base=planned).run()
    assert len(trials_in(tmp_path)) == tried
    assert ended.status == "converged"
    assert ("of the 0.0001 planned for training (tune.planned_gpu_hours)" in ended.because) is (tried == 1)


def test_the_worth_of_a_burst_counts_no_loss_and_no_recipe_that_does_not_fit() -> None:
    sure, likely = (Prediction(gain=0.02, gain_low=-0.01, gain_high=0.05, fits_probability=p) for p in (1.0, 0.5))
    assert sure.worth is not None
    assert sure.worth > 0.0198  # log of the mean gain: what turns out a loss is not kept
    assert likely.worth == pytest.approx(sure.worth / 2)
    assert Prediction(gain=-0.5, gain_low=-0.6, gain_high=-0.4).worth == pytest.approx(0.0, abs=1e-6)
    assert Prediction(gain=-0.5).worth == 0.0
    assert Prediction(gain_bound=0.3).worth is None
