"""Measures how many bursts a bisection needs and how often it is right, on planted differences.

    python -m benchmarks.bisect

A case has 5 to 30 differences between a good and a bad recipe, 1 to 3 of them guilty: each by itself, two only
together, two that cost more together than alone, or three only together; in a fifth of the cases the bad end fails
instead. Bursts have 2 % noise, of which the spread of their own steps shows a part; some differences require others
(rules). Simpler cases have one guilty difference of 20, whose predicted effects are drawn around the true ones, as in
all cases, or are uninformative. Baselines: plain halving, and one difference at a time.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from policies.bisect.guilt import Predicted, expected_deviation, guilt_of
from policies.bisect.question import Observation, Question, Subset, Verdict
from policies.bisect.steps import next_step
from policies.noise import median_error

CASES, SINGLE_CASES, BUDGET = 200, 60, 40
NOISE, STEP_NOISE, STEPS = 0.02, 0.02, 8  # relative noise of a burst and of each of its steps, and number of steps
INERT = 0.002  # spread of the effect of a difference that is not guilty
EFFECTS = (0.06, 0.40)  # range of a guilty difference's effect, a fraction of time
PREDICTION_ERROR = 0.05  # standard deviation of a predicted effect, log cost
KINDS = ("alone", "alone", "alone", "only together", "more together", "three together")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Planted differences.

    `terms` are the guilty effects, log cost by members; `needs` maps a difference to the one it requires.
    """

    count: int
    terms: dict[Subset, float]
    small: tuple[float, ...]
    needs: dict[int, int]
    predicted: tuple[Predicted, ...]
    fails: bool
    rng: random.Random = field(compare=False)

    @property
    def guilty(self) -> Subset:
        return frozenset(member for term in self.terms for member in term)

    @property
    def question(self) -> Question:
        guilt = guilt_of(self.predicted)
        return Question(guilt=guilt, deviation=self.expected(), legal=self.legal)

    def legal(self, subset: Subset) -> bool:
        return all(other in subset for each, other in self.needs.items() if each in subset)

    def burst(self, subset: Subset) -> Observation:
        acting = [cost for term, cost in self.terms.items() if term <= subset]
        if self.fails:
            return Observation(subset=subset, symptom="oom") if acting else Observation(subset=subset, log_cost=0.0)
        cost = sum(acting) + sum(self.small[each] for each in subset)
        return Observation(subset=subset, log_cost=cost + self.rng.gauss(0, NOISE))

    def expected(self) -> float:
        """Returns the standard deviation that a burst's own steps suggest; they do not show the noise between
        bursts."""
        return expected_deviation([median_error([math.exp(self.rng.gauss(0, STEP_NOISE)) for _ in range(STEPS)])])


def drawn(seed: int, *, informed: bool = True) -> Case:
    """Returns a case with 1 to 3 guilty differences."""
    rng = random.Random(f"bisect {seed}")
    count, fails = rng.randint(5, 30), seed % 5 == 4
    terms = _terms(rng, count, rng.choice(KINDS))
    return _case(rng, count, terms, informed=informed, fails=fails, rules=rng.random() < 0.3)


def one_culprit(seed: int, *, informed: bool = True) -> Case:
    """Returns a case with one guilty difference of at least 10 % among 20."""
    rng = random.Random(f"one culprit {seed}")
    terms = {frozenset({rng.randrange(20)}): math.log1p(rng.uniform(0.10, EFFECTS[1]))}
    return _case(rng, 20, terms, informed=informed, fails=False, rules=False)


def _terms(rng: random.Random, count: int, kind: str) -> dict[Subset, float]:
    def cost() -> float:
        return math.log1p(math.exp(rng.uniform(*map(math.log, EFFECTS))))

    members = rng.sample(range(count), 3)
    if kind == "alone":
        return {frozenset({each}): cost() for each in members[: rng.randint(1, 3)]}
    if kind == "three together":
        return {frozenset(members): max(cost(), math.log1p(0.1))}
    terms = {frozenset(members[:2]): max(cost(), math.log1p(0.1))}
    if kind == "more together":
        return terms | {frozenset({each}): cost() for each in members[:2]}
    return terms | ({frozenset({members[2]}): cost()} if rng.random() < 0.5 else {})


def _case(
    rng: random.Random, count: int, terms: dict[Subset, float], *, informed: bool, fails: bool, rules: bool
) -> Case:
    small = tuple(rng.gauss(0, INERT) for _ in range(count))
    alone = [terms.get(frozenset({each}), 0.0) + small[each] for each in range(count)]
    error = PREDICTION_ERROR
    predicted = [Predicted(log_cost=cost + rng.gauss(0, error) if informed else 0.0, deviation=error) for cost in alone]
    guilty = {member for term in terms for member in term}
    free = [each for each in range(count) if each not in guilty]
    needs = {each: rng.randrange(count) for each in rng.sample(free, len(free) // 4)} if rules else {}
    return Case(
        count=count,
        terms=terms,
        small=small,
        needs={each: other for each, other in needs.items() if other not in needs and other != each},
        predicted=tuple(predicted),
        fails=fails,
        rng=rng,
    )


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of one case: bursts besides the two ends, whether the found set is the planted one, and whether the
    verdict is sure."""

    bursts: int
    right: bool
    sure: bool


def bisected(case: Case, budget: int = BUDGET) -> Result:
    """Bisects a case with the product's own code."""
    seen: list[Observation] = []
    question, verdict = case.question, Verdict()
    while len(seen) < budget + 2:
        step = next_step(question, seen)
        verdict = step.verdict
        if step.next_subset is None:
            break
        seen.append(case.burst(step.next_subset))
    return Result(bursts=len(seen) - 2, right=verdict.guilty == case.guilty, sure=verdict.confident)


def halved(case: Case) -> Result:
    """Halves the differences, in order, and keeps the half that explains more than half of the slowdown."""
    level = {end: case.burst(end) for end in (frozenset[int](), case.question.all)}
    good, bad = (each.log_cost or 0.0 for each in level.values())
    suspects, bursts = list(range(case.count)), 0
    while len(suspects) > 1:
        first = frozenset(suspects[: len(suspects) // 2])
        seen = case.burst(first)
        bursts += 1
        slow = seen.symptom is not None or (seen.log_cost or 0.0) > (good + bad) / 2
        suspects = sorted(first) if slow else suspects[len(suspects) // 2 :]
    return Result(bursts=bursts, right=frozenset(suspects) == case.guilty, sure=True)


def one_at_a_time(case: Case) -> Result:
    """Adds each difference alone to A; guilty are those slower than A by twice the noise of a difference."""
    good = case.burst(frozenset()).log_cost or 0.0
    seen = [case.burst(frozenset({each})) for each in range(case.count)]
    limit = 2 * math.sqrt(2) * NOISE
    guilty = {
        member
        for each in seen
        for member in each.subset
        if each.symptom is not None or (each.log_cost or 0.0) - good > limit
    }
    return Result(bursts=case.count, right=guilty == case.guilty, sure=True)


METHODS: dict[str, Callable[[Case], Result]] = {
    "bisect": bisected,
    "plain halving": halved,
    "one at a time": one_at_a_time,
}


def rows(name: str, draw: Callable[[int], Case], cases: int) -> Iterator[str]:
    """Yields a line for each method on the same cases."""
    for method, play in METHODS.items():
        yield f"{name:38} {method:14} {figures([play(draw(seed)) for seed in range(cases)])}"


def figures(results: Sequence[Result]) -> str:
    """Returns the share of right sets, the share of wrong ones called sure, and the bursts."""
    bursts = sorted(each.bursts for each in results)
    right = sum(each.right for each in results) / len(results)
    wrong = sum(each.sure and not each.right for each in results)
    p90 = bursts[math.ceil(0.9 * len(bursts)) - 1]
    return f"{100 * right:5.1f} % right  {wrong:3} confidently wrong  bursts {median(bursts):4g} median, {p90} p90"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES, help="planted cases")
    cases = parser.parse_args().cases
    single = min(cases, SINGLE_CASES)
    print("bursts do not count the first of each end")
    for informed, words in ((True, "predicted"), (False, "not predicted")):
        draw_one = lambda seed, informed=informed: one_culprit(seed, informed=informed)  # noqa: E731
        for line in rows(f"{single} with one culprit of 20, {words}", draw_one, single):
            print(line, flush=True)
    for line in rows(f"{cases} with 1 to 3 culprits", drawn, cases):
        print(line, flush=True)


if __name__ == "__main__":
    main()
