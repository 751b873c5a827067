"""A bisection finds planted culprits, in few bursts, from the bursts alone."""

from __future__ import annotations

from benchmarks.bisect import Case, bisected, drawn, one_culprit
from policies.bisect.question import Observation, Question, Subset
from policies.bisect.steps import next_step
from tests.rows import filled


def played(case: Case) -> list[Observation]:
    question, seen = case.question, list[Observation]()
    while (ask := next_step(question, seen).next_subset) is not None:
        seen.append(case.burst(ask))
    return seen


def test_planted_culprits_are_found_and_none_is_confidently_wrong() -> None:
    results = [bisected(drawn(seed)) for seed in filled((0, 4))]
    assert all(each.right and each.sure for each in results)


def test_one_culprit_of_twenty_takes_few_bursts() -> None:
    assert bisected(one_culprit(3)).bursts <= 5


def test_the_same_bursts_give_the_same_step_so_that_a_bisection_resumes() -> None:
    case = drawn(2)
    question, seen = case.question, list[Observation]()
    for _ in range(4):
        ask = next_step(question, seen).next_subset
        assert ask is not None
        seen.append(case.burst(ask))
    assert next_step(question, seen) == next_step(question, list(seen))


def test_every_subset_that_is_asked_for_is_legal() -> None:
    case = next(case for seed in range(60) if (case := drawn(seed)).needs and case.fails)
    assert all(case.legal(each.subset) for each in filled(played(case)))


def test_two_ends_that_do_not_differ_are_a_verdict() -> None:
    question = Question(guilt=(0.2,) * 6, least=0.03, deviation=0.01)
    seen: list[Observation] = []
    while (ask := (step := next_step(question, seen)).next_subset) is not None and len(seen) < 12:
        seen.append(Observation(subset=ask, log_cost=0.001 * (len(seen) % 2)))
    assert step.verdict.confident
    assert not step.verdict.guilty


def test_differences_that_act_only_together_are_named_together() -> None:
    question = Question(guilt=(0.1,) * 8, least=0.03, deviation=0.01)
    seen: list[Observation] = []
    while (ask := (step := next_step(question, seen)).next_subset) is not None:
        seen.append(Observation(subset=ask, log_cost=0.2 * ({2, 5} <= ask)))
    assert [each.members for each in step.verdict.culprits] == [(2, 5)]


def test_a_good_end_that_fails_ends_the_bisection() -> None:
    question = Question(guilt=(0.1,) * 4, least=0.03, deviation=0.01)
    ends: list[Subset] = [frozenset(), question.all]
    step = next_step(question, [Observation(subset=end, symptom="oom") for end in ends])
    assert (step.next_subset, step.verdict.symptom, step.verdict.confident) == (None, "oom", False)


def test_independent_failures_are_two_sets_and_a_pair_is_one() -> None:
    question = Question(guilt=(0.1,) * 9, least=0.03, deviation=0.01)
    seen: list[Observation] = []
    while (ask := (step := next_step(question, seen)).next_subset) is not None:
        bad = 7 in ask or {1, 4} <= ask
        seen.append(Observation(subset=ask, symptom="nan" if bad else None, log_cost=None if bad else 0.0))
    assert sorted(each.members for each in step.verdict.culprits) == [(1, 4), (7,)]


def test_one_difference_and_two_are_bisected_too() -> None:
    for count in (1, 2):
        question = Question(guilt=(0.4,) * count, least=0.03, deviation=0.01)
        seen: list[Observation] = []
        while (ask := (step := next_step(question, seen)).next_subset) is not None:
            seen.append(Observation(subset=ask, log_cost=0.2 * (0 in ask)))
        assert [each.members for each in step.verdict.culprits] == [(0,)]


def test_noise_that_hides_a_difference_leaves_the_answer_open() -> None:
    question = Question(guilt=(0.5,) * 3, least=0.03, deviation=0.3)
    ends = [Observation(subset=frozenset(), log_cost=0.0), Observation(subset=question.all, log_cost=0.1)]
    assert not next_step(question, ends).verdict.confident


def test_one_effect_far_larger_than_usual_is_not_taken_for_two() -> None:
    question = Question(guilt=(0.6, *(0.07,) * 7), least=0.03, deviation=0.02)
    seen: list[Observation] = []
    while (ask := (step := next_step(question, seen)).next_subset) is not None and len(seen) < 10:
        seen.append(Observation(subset=ask, log_cost=1.55 * (0 in ask) + 0.01 * (len(seen) % 3)))
    assert [each.members for each in step.verdict.culprits] == [(0,)]
    assert len(seen) <= 6


def test_a_gain_that_is_not_pinned_down_is_reported_as_that_of_the_rest() -> None:
    question = Question(guilt=(0.6, 0.3, 0.1, 0.1), least=0.03, deviation=0.015)
    cost = (0.26, 0.0, -0.16, 0.0)
    seen: list[Observation] = []
    while (ask := (step := next_step(question, seen)).next_subset) is not None and len(seen) < 12:
        seen.append(Observation(subset=ask, log_cost=sum(cost[each] for each in ask)))
    named = {member for each in step.verdict.helpers for member in each.members}
    assert named <= {2}
    assert step.verdict.guilty == {0}
    assert step.verdict.total is not None
    rest = step.verdict.rest
    assert named or (rest is not None and (rest.high or 0.0) < 0)
