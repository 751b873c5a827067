"""Checks priors from other studies: they hold only factors that those studies' bursts updated, with a wider spread."""

from __future__ import annotations

import numpy as np
import pytest

from policies.surrogate.factors import factors
from policies.surrogate.lesson import Lesson
from policies.surrogate.prior import lesson_of, prior_of
from policies.surrogate.time import fit_time, table_prior
from tests.policies.surrogate.planted_clusters import OTHER, RECIPES, evidence, true_step_s
from trainer.estimate.candidates import tabulate

SLOW = {"network": -0.6, "gemm": -0.3}


@pytest.fixture(scope="module")
def lesson() -> Lesson:
    return lesson_of(fit_time(evidence(RECIPES, SLOW)), study="other")


def test_without_lessons_the_prior_is_the_tables() -> None:
    assert prior_of([]).mean.tolist() == table_prior().mean.tolist()
    assert prior_of([]).spread.tolist() == table_prior().spread.tolist()


def test_a_lesson_is_of_what_the_bursts_have_touched(lesson: Lesson) -> None:
    assert lesson.trials == len(RECIPES)
    assert lesson.mean["network"] < -0.3
    assert "hybridep" not in lesson.mean
    assert "cp" not in lesson.mean


def test_a_lesson_moves_the_prior_towards_it_and_narrows_it_less_than_it_was_narrowed_there(lesson: Lesson) -> None:
    prior, place = prior_of([lesson]), [factor.name for factor in factors()].index("network")
    assert lesson.mean["network"] < prior.mean[place] < 0
    assert lesson.deviation["network"] < prior.spread[place] < factors()[place].spread


def test_two_lessons_narrow_more_than_one(lesson: Lesson) -> None:
    assert (prior_of([lesson, lesson]).spread <= prior_of([lesson]).spread).all()


def test_what_another_study_taught_predicts_a_first_burst_better_than_the_tables(lesson: Lesson) -> None:
    truth, table = np.log(true_step_s(OTHER, SLOW)), tabulate([OTHER])
    taught, _ = fit_time([], prior_of([lesson])).predict(table)
    untaught, _ = fit_time([]).predict(table)
    assert abs(taught[0] - truth) < 0.5 * abs(untaught[0] - truth)


def test_own_bursts_outweigh_a_lesson_that_is_wrong() -> None:
    wrong = Lesson(
        study="other", trials=3, mean={"network": 0.8, "gemm": 0.4}, deviation={"network": 0.1, "gemm": 0.05}
    )
    truth = np.log(true_step_s(OTHER, SLOW))
    found, deviation = fit_time(evidence(RECIPES, SLOW), prior_of([wrong])).predict(tabulate([OTHER]))
    assert found[0] == pytest.approx(truth, abs=0.08)
    assert abs(found[0] - truth) < 2.6 * deviation[0]
