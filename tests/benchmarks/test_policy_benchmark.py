"""The benchmark of policies in small: a scenario, two bursts; and its figures by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.policy.__main__ import CONTENDERS, Result, play
from benchmarks.policy.best import Effort, read_best, write_best
from benchmarks.policy.figures import rows_of
from benchmarks.policy.ground import Ground
from benchmarks.policy.plot import draw
from benchmarks.policy.scenarios import drawn_machine, scenarios
from benchmarks.policy.study import FitCounts, Paid, Predicted, Study
from benchmarks.policy.today import read_today, write_today
from benchmarks.policy.wide import DEVELOPMENT, JUDGED, wide_scenarios
from tests.draws import few
from tests.rows import filled
from trainer.recipe.load_machine import packaged_machines
from trainer.recipe.rules import check

SMALL = ("gpt-oss-20b 8xh100 skewed-router", "moonlight-16b-a3b 8xb200 drawn-19")
LITTLE = Effort(planned=4, drawn=4, climbs=0, pairs=0)
BUDGET = 2


def study(*tuned: float, start: float = 0.0, hours: float = 2.0) -> Study:
    paid = tuple(Paid(gpu_hours=hours, oom=rate == 0, tuned=rate) for rate in tuned)
    return Study(contender="drawn", scenario="one", world=8, start=start, paid=paid)


@pytest.fixture(scope="module", params=few(SMALL, 1))
def result(request: pytest.FixtureRequest) -> Result:
    scenario = next(scenario for scenario in scenarios() if scenario.name == request.param)
    return play(scenario, only=("policy", "plan"), budget=BUDGET, known={}, effort=LITTLE)


def test_every_scenario_is_legal_and_named_once() -> None:
    every = scenarios()
    assert len(every) >= 40
    assert len({scenario.name for scenario in every}) == len(every)
    assert not [finding for one in every for finding in check(one.recipe) if finding.kind == "error"]
    assert {one.machine.name for one in every} >= set(packaged_machines())
    assert 10 <= sum(one.unseen for one in every) < len(every) / 2


def test_a_machine_that_is_unseen_is_so_in_every_scenario() -> None:
    seen = {one.machine.name for one in scenarios() if not one.unseen}
    assert not seen & {one.machine.name for one in scenarios() if one.unseen}


def test_a_drawn_machine_is_always_the_same_and_several_keys_away_from_the_default() -> None:
    assert drawn_machine(7) == drawn_machine(7) != drawn_machine(8)
    moved = drawn_machine(7).model_dump(exclude_defaults=True)
    assert sum(len(section) for name, section in moved.items() if name != "name") >= 6


def test_wide_scenarios_are_legal_named_once_and_far_from_the_default() -> None:
    every = wide_scenarios()
    assert [sum(one.unseen is judged for one in every) for judged in (False, True)] == [DEVELOPMENT, JUDGED]
    assert len({one.name for one in every}) == len({one.machine.name for one in every}) == len(every)
    assert not [finding for one in every for finding in check(one.recipe) if finding.kind == "error"]
    moved = [one.machine.model_dump(exclude_defaults=True) for one in every]
    assert all(
        sum(len(keys) for name, keys in each.items() if name not in ("name", "stragglers")) >= 6 for each in moved
    )


def test_nobody_is_better_than_the_best_known_and_nobody_pays_more_than_the_budget(result: Result) -> None:
    for one in filled(result.studies):
        assert one.tuned_after(BUDGET) <= result.best.tokens_per_s_per_gpu
        assert 0 < len(one.paid) <= BUDGET
        assert all(burst.gpu_hours > 0 for burst in one.paid)


def test_the_same_scenario_gives_the_same_studies(result: Result) -> None:
    known = {result.scenario.name: result.best}
    again = play(result.scenario, only=("plan",), budget=BUDGET, known=known, effort=LITTLE)
    before = next(one for one in result.studies if one.contender == "plan")
    assert again.studies[0].paid == before.paid


def test_a_first_choice_runs_and_pays_nothing(result: Result) -> None:
    chosen = CONTENDERS["first choice"](Ground(result.scenario), 1)
    assert 0 < chosen.tuned_after(1) <= 1.1 * result.best.tokens_per_s_per_gpu  # little was searched here
    assert chosen.paid == ()


def test_the_best_known_and_the_kept_figures_come_back_from_their_tables(result: Result, tmp_path: Path) -> None:
    chosen = [result.scenario]
    write_best(tmp_path / "best.csv", chosen, {result.scenario.name: result.best})
    known = read_best(tmp_path / "best.csv", chosen)
    assert known[result.scenario.name].recipe(result.scenario) == result.best.recipe(result.scenario)
    kept = [result.studies[0]]
    write_today(tmp_path / "today.csv", chosen, kept)
    read = read_today(tmp_path / "today.csv", chosen)
    assert [one.ooms for one in read] == [one.ooms for one in kept]
    assert [one.fitting for one in read] == [one.fitting for one in kept]
    assert [forecast.trial for one in read for forecast in one.predicted] == [
        forecast.trial for one in kept for forecast in one.predicted
    ]
    assert [one.tuned_after(2) for one in read] == pytest.approx([one.tuned_after(2) for one in kept], rel=1e-3)


def test_the_picture_is_drawn(result: Result, tmp_path: Path) -> None:
    draw(tmp_path / "regret.svg", result.studies, {result.scenario.name: result.best.tokens_per_s_per_gpu}, BUDGET)
    assert (tmp_path / "regret.svg").read_text().startswith("<svg")


def test_a_study_that_ended_early_keeps_what_it_had() -> None:
    assert [study(0, 50, 90).tuned_after(bursts) for bursts in (0, 1, 2, 20)] == [0, 0, 50, 90]
    assert not study(0, 0).has_recipe


def test_bursts_are_counted_until_what_would_be_exported_is_good_and_stays_so() -> None:
    assert study(0, 96, 97).bursts_to(95) == 2
    assert study(96, 94, 97).bursts_to(95) == 3
    assert study(10, start=96).bursts_to(95) == math.inf
    assert study(96, start=96).bursts_to(95) == 0


def test_hours_count_until_the_goal_is_reached_for_good() -> None:
    assert study(0, 96, 97).hours_to(95) == 4
    assert study(96, 94, 97).hours_to(95) == 6
    assert study(10, start=96).hours_to(95) == math.inf
    assert study(96, start=96).hours_to(95) == 0
    assert [study(50, 90).tuned_at(hours) for hours in (1.9, 2, 4)] == [0, 50, 90]


def test_a_row_has_the_median_the_tenth_percentile_and_the_failures() -> None:
    (row,) = rows_of([study(50, 100), study(0, 0)], {"one": 100.0}, 20)
    assert row.tuned[1] == pytest.approx((0.25, 0.05))
    assert (row.without, row.ooms, row.most_ooms, row.reached, row.hours) == (1, 1.0, 2, 0.5, 4.0)


def test_a_prediction_is_judged_by_its_error_and_its_bound() -> None:
    forecast = Predicted(gain=0.2, bound=0.25, true=0.2)
    assert forecast.error == pytest.approx(0)
    assert forecast.covered
    assert not Predicted(gain=0.1, bound=0.15, true=0.3).covered
    assert Predicted(gain=0.2, bound=0.25, true=0.2, low=0.1).inside
    assert not Predicted(gain=0.2, bound=0.25, true=0.05, low=0.1).inside


def test_what_was_refused_is_counted_of_what_fits_and_what_ran_out_of_what_was_admitted() -> None:
    counted = (FitCounts(fit=40, refused=2, admitted=40, died=2), FitCounts(fit=40, refused=0, admitted=60, died=0))
    (row,) = rows_of([replace(study(50, 100), fitting=counted)], {"one": 100.0}, 20)
    assert (row.refused, row.died) == (2 / 80, 2 / 100)
