"""An ablation finds the changes that cost nothing, in few bursts, from the bursts alone."""

from __future__ import annotations

import random

import numpy as np

from policies.ablation.removal import AblationStep, ablation_step
from policies.bisect.posterior import SmallEffects
from policies.bisect.question import Observation, Question, Subset
from policies.bisect.terms import terms_of

NOISE = 0.003


def played(
    true: list[float], predicted: list[float], *, spread: float, bursts: int, legal: frozenset[int] | None = None
) -> tuple[AblationStep, list[Observation]]:
    """Spends bursts on changes with these true and predicted costs of taking each out; returns the last step and what
    was observed."""
    count, rng = len(true), random.Random(1)
    allowed = frozenset(range(count)) if legal is None else legal
    question = Question(guilt=(0.03,) * count, deviation=NOISE, legal=lambda subset: subset <= allowed)
    small, terms = SmallEffects(mean=np.array(predicted), deviation=np.full(count, spread)), terms_of(question.guilt)

    def burst(subset: Subset) -> Observation:
        return Observation(subset=subset, log_cost=sum(true[each] for each in subset) + rng.gauss(0, NOISE))

    seen = [burst(frozenset()), burst(frozenset())]
    step = ablation_step(question, terms, small, seen)
    while step.next_removal is not None and len(seen) < bursts + 2:
        seen.append(burst(frozenset() if step.repeat_tuned else step.next_removal.taken))
        step = ablation_step(question, terms, small, seen)
    return step, seen


def test_changes_that_cost_nothing_are_taken_out_together() -> None:
    step, seen = played([0.0, 0.0, 0.0, 0.2], [0.0, 0.001, 0.0, 0.15], spread=0.005, bursts=4)
    assert step.confirmed is not None
    assert step.confirmed.taken == {0, 1, 2}
    assert len(seen) - 2 <= 4


def test_a_change_that_costs_more_than_predicted_is_found_and_kept() -> None:
    step, _ = played([0.0, 0.05, 0.0, 0.0], [0.0] * 4, spread=0.005, bursts=8)
    assert step.confirmed is not None
    assert step.confirmed.taken == {0, 2, 3}


def test_what_costs_one_percent_is_not_taken_out() -> None:
    step, _ = played([0.012, 0.011], [0.0, 0.0], spread=0.01, bursts=6)
    assert step.confirmed is None


def test_a_change_that_rules_ask_for_is_never_tried() -> None:
    step, seen = played([0.0] * 3, [0.0] * 3, spread=0.005, bursts=6, legal=frozenset({0, 2}))
    assert all(1 not in each.subset for each in seen)
    assert step.confirmed is not None
    assert step.confirmed.taken == {0, 2}


def test_a_set_that_failed_and_larger_ones_are_not_tried_again() -> None:
    question = Question(guilt=(0.03,) * 3, deviation=NOISE)
    small, terms = SmallEffects(mean=np.zeros(3), deviation=np.full(3, 0.005)), terms_of(question.guilt)
    seen = [Observation(subset=frozenset(), log_cost=0.0), Observation(subset=frozenset({0}), symptom="oom")]
    step = ablation_step(question, terms, small, seen)
    assert step.next_removal is not None
    assert step.next_removal.taken == {1, 2}
