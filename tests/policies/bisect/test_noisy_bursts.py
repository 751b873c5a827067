"""A bisection on a machine whose bursts scatter by 20 to 60 %: repeats say what the noise is, and nothing is named that
they do not show."""

from __future__ import annotations

import random

import pytest

from policies.bisect.question import BisectStep, Observation, Question
from policies.bisect.steps import next_step
from tests.draws import few

A: frozenset[int] = frozenset()
CULPRIT = 1


def played(
    question: Question, cost: float, noise: float, bursts: int, seed: int = 0
) -> tuple[BisectStep, list[Observation]]:
    """Returns the last step and the bursts, of at most `bursts`, with one culprit of this log cost."""
    rng, seen = random.Random(seed), list[Observation]()
    while (ask := (step := next_step(question, seen)).next_subset) is not None and len(seen) < bursts:
        seen.append(Observation(subset=ask, log_cost=cost * (CULPRIT in ask) + rng.gauss(0, noise)))
    return step, seen


def test_where_steps_say_that_noise_hides_all_the_ends_are_repeated_in_turn() -> None:
    question = Question(guilt=(0.3,) * 4, deviation=0.57)
    _, seen = played(question, 0.0, 0.5, 8)
    assert [each.subset for each in seen[:4]] == [A, question.all, question.all, A]


def test_while_bursts_are_left_nothing_is_final_that_noise_hides() -> None:
    step, seen = played(Question(guilt=(0.3,) * 4, deviation=0.57), 0.2, 0.6, 12)
    assert len(seen) == 12
    assert not step.verdict.confident


def test_repeats_that_agree_outweigh_steps_that_do_not() -> None:
    step, seen = played(Question(guilt=(0.3,) * 4, deviation=0.57), 0.5, 0.02, 12)
    assert step.verdict.guilty == {CULPRIT}
    assert step.verdict.confident
    assert len(seen) <= 10


@pytest.mark.parametrize(("seed", "noise"), few([(0, 0.2), (2, 0.6), (1, 0.4)], 2))
def test_noise_that_steps_do_not_show_makes_no_verdict_wrong(seed: int, noise: float) -> None:
    step, _ = played(Question(guilt=(0.3,) * 5, deviation=0.015), 0.4, noise, 14, seed)
    assert not step.verdict.confident or step.verdict.guilty == {CULPRIT}
