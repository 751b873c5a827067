"""Decomposes a candidate into named fixes: which fixes it consists of, the predicted gain of each, and which are
needed.

Fixes recognise themselves in the change (`Fix.matches`); if several match a knob, it belongs to the first of
PRECEDENCE. Changes that no fix matches are members by themselves, under the knob's name. A member's share is the
predicted gain that is lost without it and the knobs that follow it; the interaction is the total minus the sum of the
shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzers.diagnosis import Wall
from policies.candidates.candidate import Candidate, PredictionSource, group_of
from policies.candidates.effects import gained
from policies.candidates.free import LEFT_ON
from policies.candidates.knowledge import Knowledge
from policies.changes.fix import Fix
from policies.changes.legality import Refusal, derive
from policies.changes.matching import FOLLOWERS
from policies.constants import constant
from policies.fixes import FIXES
from policies.search.acquisition import CONFIDENT_FIT_PROBABILITY, score, score_first
from policies.situation import Situation
from policies.trial import FixShare
from trainer.estimate.candidates import Floats, tabulate
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

PRECEDENCE = (  # the narrower change first; all others do not share knobs
    *("less_pipeline_parallel", "more_pipeline_parallel", "interleaved_pipeline", "even_stages"),
    *("expert_parallel_for_tensor", "expert_parallel_in_domain", "less_expert_parallel", "more_expert_parallel"),
    *("less_tensor_parallel", "more_tensor_parallel", "full_recompute", "drop_recompute", "selective_recompute"),
    *("optimizer_offload", "activation_offload", "drop_offload", "dispatcher"),
)
NO_VALUE = object()  # equal to no knob's value
REDUCIBLE_LOG_GAIN = constant("reducible_log_gain")
REDUCED_IMPROVEMENT = constant("reduced_improvement")


@dataclass(frozen=True, kw_only=True)
class Member:
    """One named part of a change: a fix, or a knob by itself; `knobs` are those that it changed."""

    name: str
    knobs: tuple[str, ...]

    @property
    def fix(self) -> Fix | None:
        return FIXES.get(self.name)


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """The shares of the members, the largest first; `interaction` is the predicted gain (a fraction of throughput) that
    no single member accounts for."""

    shares: tuple[FixShare, ...]
    interaction: float


def members(before: Recipe, after: Recipe) -> list[Member]:
    """Returns the named parts of the change between two recipes; together they move every knob that differs."""
    left = dict.fromkeys(before.diff(after))
    found = []
    for name in (*PRECEDENCE, *(name for name in FIXES if name not in PRECEDENCE)):
        fix = FIXES[name]
        if any(knob in left for knob in fix.knobs) and fix.matches(before, after):
            found.append(Member(name=name, knobs=tuple(_taken(left, fix.knobs))))
    while left:
        knob = next(
            (knob for knob in left if not any(knob in FOLLOWERS.get(other, ()) for other in left)), next(iter(left))
        )
        found.append(Member(name=knob, knobs=tuple(_taken(left, (knob,)))))
    return found


def _taken(left: dict[str, None], knobs: Sequence[str]) -> Iterator[str]:
    """Removes knobs, and the knobs that depend on them, from `left`; yields those it removed."""
    for knob in (*knobs, *(follower for one in knobs for follower in FOLLOWERS.get(one, ()))):
        if knob in left:
            del left[knob]
            yield knob


def without(before: Recipe, after: Recipe, member: Member) -> Recipe | None:
    """Returns `after` without a member's changes; None if that is illegal."""
    back = {knob: before.knob(knob) for knob in member.knobs}
    if set(back) >= set(before.diff(after)):
        return before
    derived = derive(after, back)
    return None if isinstance(derived, Refusal) else derived


def alone(before: Recipe, after: Recipe, member: Member) -> Recipe | None:
    """Returns `before` with only a member's changes; None if that is illegal."""
    derived = derive(before, {knob: after.knob(knob) for knob in member.knobs})
    return None if isinstance(derived, Refusal) else derived


def decompose(candidate: Candidate, knowledge: Knowledge) -> Decomposition:
    """Returns the members of a candidate with their predicted shares, and the memory that each frees if the incumbent
    does not fit. A member that cannot legally be taken out has as its share the gain that it brings alone."""
    found, (before, after) = members(knowledge.recipe, candidate.recipe), (knowledge.recipe, candidate.recipe)
    if candidate.source is not PredictionSource.SURROGATE:
        return _undivided(candidate, found, knowledge)
    rests = [without(before, after, member) for member in found]
    others = [rest or alone(before, after, member) for rest, member in zip(rests, found, strict=True)]
    log_gains, needs = _predicted(knowledge, [before, after, *(other or before for other in others)])
    gains = np.expm1(log_gains)
    shares = []
    for row, (member, rest, other) in enumerate(zip(found, rests, others, strict=True), start=2):
        there, taken = (
            (1, row) if rest is not None else (row, 0)
        )  # gain of a member: the gain with it, less the gain without it
        shares.append(
            FixShare(
                fix=member.name,
                wall=wall_of(member, knowledge.situation),
                knobs=member.knobs,
                predicted_share=None if other is None else float(gains[there] - gains[taken]),
                frees_gib=None if other is None or not knowledge.needs_room else float(needs[taken] - needs[there]),
            )
        )
    known = [share.predicted_share for share in shares if share.predicted_share is not None]
    return Decomposition(shares=_largest_first(shares), interaction=float(gains[1]) - sum(known))


def smallest(candidate: Candidate, knowledge: Knowledge) -> Candidate:
    """Returns the candidate reduced to the smallest change with its gain; unchanged if it is not the surrogate's.

    Members are taken out one at a time, the least first, while predicted throughput falls by less than
    REDUCIBLE_LOG_GAIN in all and expected improvement keeps REDUCED_IMPROVEMENT of its value. Members are kept if
    P(fits) or a rule requires them, or if they turn on a setting without a cost or with a published gain.
    """
    if candidate.source is not PredictionSource.SURROGATE:
        return candidate
    found = full = rescored(candidate, candidate.recipe, knowledge)
    while (smaller := _next_smaller(found, full, knowledge)) is not None:
        found = smaller
    return found


def _next_smaller(candidate: Candidate, full: Candidate, knowledge: Knowledge) -> Candidate | None:
    """Returns the candidate without the member that costs least; None if every one is needed."""
    parts = members(knowledge.recipe, candidate.recipe)
    options = [
        without(knowledge.recipe, candidate.recipe, each) for each in parts if not _is_needed(each, candidate.recipe)
    ]
    fresh = [each for each in options if each is not None and not knowledge.avoid.excludes(each)]
    if len(parts) < 2 or not fresh:
        return None
    kept = [
        each
        for each in _rescored(candidate, fresh, knowledge)
        if each.log_step < full.log_step + REDUCIBLE_LOG_GAIN
        and each.expected_improvement >= REDUCED_IMPROVEMENT * full.expected_improvement
        and each.fits_probability >= min(full.fits_probability, CONFIDENT_FIT_PROBABILITY)
    ]
    return min(kept, key=lambda each: each.log_step, default=None)


def _is_needed(member: Member, recipe: Recipe) -> bool:
    """Returns true if a member turns on a setting without a cost or with a published gain: the estimate underrates
    both."""
    return any(gained(recipe, knob) or LEFT_ON.get(knob, NO_VALUE) == recipe.knob(knob) for knob in member.knobs)


def _predicted(knowledge: Knowledge, recipes: Sequence[Recipe]) -> tuple[Floats, Floats]:
    """Returns, for each recipe, (log ratio of throughput to the incumbent's, GiB that the hottest GPU needs)."""
    table, time = tabulate(recipes), knowledge.surrogate.time
    log_step, _ = time.difference(time.closed_form(table), time.closed_form_of(knowledge.recipe))
    need, _ = knowledge.surrogate.memory.needs(table)
    return -log_step, need


def rescored(candidate: Candidate, recipe: Recipe, knowledge: Knowledge) -> Candidate:
    """Returns the candidate with `recipe` in place of its own, scored again."""
    return _rescored(candidate, [recipe], knowledge)[0]


def _rescored(candidate: Candidate, recipes: Sequence[Recipe], knowledge: Knowledge) -> list[Candidate]:
    table, time = tabulate(recipes), knowledge.surrogate.time
    if candidate.log_gain is None:
        scores = score_first(table, knowledge.surrogate, knowledge.avoid)
    else:
        now = time.closed_form_of(knowledge.recipe)
        scores = score(table, now, knowledge.surrogate, knowledge.avoid, min_fit=knowledge.min_fit)
    group, runs = group_of(recipes, table, scores), candidate.log_gain is not None
    return [
        replace(group.candidate(row, recipe, runs=runs), paired=candidate.paired) for row, recipe in enumerate(recipes)
    ]


def _undivided(candidate: Candidate, found: Sequence[Member], knowledge: Knowledge) -> Decomposition:
    """Returns a decomposition that gives the whole predicted gain to the fix, or the knob, for which the candidate was
    made."""
    named = candidate.claimed.fix.name if candidate.claimed else ""
    named = candidate.published.knob.name if candidate.published else named
    chief = next((m for m in found if m.name == named or named in m.knobs), found[0])
    gain = math.expm1(candidate.log_gain or 0.0)
    shares = [
        FixShare(
            fix=member.name,
            wall=candidate.claimed.wall
            if candidate.claimed and member is chief
            else wall_of(member, knowledge.situation),
            knobs=member.knobs,
            predicted_share=gain if member is chief else None,
        )
        for member in found
    ]
    return Decomposition(shares=_largest_first(shares), interaction=0.0)


def wall_of(member: Member, situation: Situation) -> Wall | None:
    """Returns the wall that a member acts on; of several, the one that could give back most in the trace. Memory for a
    fix without walls, None for other knobs without."""
    fix = member.fix
    walls = fix.walls if fix is not None else ()
    if not walls and fix is not None:
        return Wall.MEMORY
    walls = walls or tuple(Wall(wall) for knob in member.knobs if knob in KNOBS for wall in KNOBS[knob].walls)
    return max(walls, key=situation.recoverable_us, default=None)


def _largest_first(shares: Sequence[FixShare]) -> tuple[FixShare, ...]:
    """Returns the shares ordered by memory freed if the incumbent does not fit, else by predicted share."""

    def order(each: FixShare) -> tuple[float, float]:
        return -(each.frees_gib or 0.0), math.inf if each.predicted_share is None else -each.predicted_share

    return tuple(sorted(shares, key=order))


def fix_of(shares: Sequence[FixShare]) -> str:
    """Returns the name of a proposal: the fix with the largest share, `base` without any."""
    return shares[0].fix if shares else "base"
