"""Finds the sets of differences, every one needed, that make a recipe fail, by halving as in delta debugging.

A failure is deterministic and monotone here: a subset that contains a failing one fails. Junker's QuickXplain finds a
set of k of the n differences in about twice `k log(n / k)` bursts; the halves are of equal
probability of guilt. Source: U. Junker, QuickXplain, AAAI 2004; A. Zeller, R. Hildebrandt, Simplifying and isolating
failure-inducing input, IEEE TSE 2002.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import accumulate

from policies.bisect.question import BisectStep, Effect, Observation, Question, Subset, Verdict

Search = Generator[Subset, bool, tuple[Subset, ...]]  # asks for subsets, is sent whether each failed


def failure_step(question: Question, symptom: str, seen: Sequence[Observation]) -> BisectStep:
    """Returns the verdict after some bursts and the next subset. Pure: the search is replayed with their results."""
    results = {each.subset: each.symptom == symptom for each in seen}
    search = _sets(question)
    try:
        ask = next(search)
        while ask in results:
            ask = search.send(results[ask])
    except StopIteration as end:
        return BisectStep(verdict=_verdict(question, end.value, symptom, seen), next_subset=None)
    return BisectStep(verdict=Verdict(symptom=symptom), next_subset=ask)


def _verdict(question: Question, found: tuple[Subset, ...], symptom: str, seen: Sequence[Observation]) -> Verdict:
    """Returns the sets found; confident if each failed by itself and no burst failed with another symptom."""
    failed = {each.subset for each in seen if each.symptom == symptom}
    sure = bool(found) and all(question.closed(each) in failed for each in found)
    clouded = any(each.symptom not in (None, symptom) for each in seen)
    return Verdict(
        culprits=tuple(Effect(members=tuple(sorted(each))) for each in found),
        probability=1.0 if sure and not clouded else 0.0,
        confident=sure and not clouded,
        symptom=symptom,
    )


def _sets(question: Question) -> Search:
    """Finds independent failing sets one after another, until the differences that are left do not fail."""
    left, found = question.all, list[Subset]()
    while left and (yield from _fails(question, left)):
        several = yield from _needed(question, frozenset(), False, _ordered(question, left))
        each = yield from _without_unneeded(question, question.with_needed(several))
        if not each or not (yield from _fails(question, each)):
            break  # no set of which every member is needed: the failure is not monotone
        found.append(each)
        left = frozenset(other for other in left if not each & question.with_needed(frozenset({other})))
    return tuple(found)


def _needed(question: Question, kept: Subset, changed: bool, items: Sequence[int]) -> Generator[Subset, bool, Subset]:
    """Returns the members of `items` without which `kept` plus `items` does not fail (QuickXplain).

    Each is run with the differences that the rules require with it. `changed`: `kept` has grown since it last ran.
    """
    if changed and (yield from _fails(question, kept)):
        return frozenset()
    if len(items) == 1:
        return frozenset(items)
    cut = _middle([question.guilt[item] for item in items])
    first = kept | question.with_needed(frozenset(items[:cut]))
    of_second = yield from _needed(question, first, True, items[cut:])
    second = kept | question.with_needed(of_second)
    of_first = yield from _needed(question, second, bool(of_second), items[:cut])
    return of_first | of_second


def _without_unneeded(question: Question, subset: Subset) -> Generator[Subset, bool, Subset]:
    """Returns a failing subset without members that it does not need: those that only the rules added, and those that
    require such a member."""
    for member in reversed(_ordered(question, subset)):
        rest = frozenset(each for each in subset if member not in question.with_needed(frozenset({each})))
        if rest and _is_tied(question, member, subset) and (yield from _fails(question, rest)):
            subset = rest
    return subset


def _is_tied(question: Question, member: int, subset: Subset) -> bool:
    """Returns whether the rules tie a member to another one of the subset: either requires the other."""
    needed = question.with_needed
    return any(each in needed(frozenset({member})) or member in needed(frozenset({each})) for each in subset - {member})


def _fails(question: Question, subset: Subset) -> Generator[Subset, bool, bool]:
    """Yields the subset to run, with the differences that the rules require, and returns whether it failed.

    A subset that cannot be made legal counts as one that does not fail.
    """
    closed = question.closed(subset)
    return False if closed is None else (yield closed)


def _ordered(question: Question, subset: Subset) -> list[int]:
    """Returns the differences by descending probability of guilt."""
    return sorted(subset, key=lambda each: (-question.guilt[each], each))


def _middle(chances: Sequence[float]) -> int:
    """Returns the number of leading items that hold about half of the probability; at least one, and not all."""
    half = sum(chances) / 2
    cut = next(at for at, total in enumerate(accumulate(chances), 1) if total >= half)
    return min(max(cut, 1), len(chances) - 1)
