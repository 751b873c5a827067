"""Candidates from the legal space of `plan`: every layout with every setting, keeping the incumbent's gains.

A step to another layout must not give back what single settings have gained, and settings that cost nothing are not
worth a burst of their own. Knobs that `plan` does not vary keep the incumbent's values on CPUs; on GPUs those do that
the search tries by themselves (`tries` in the knob table) or that even out the experts' load. A layout that refuses one
is left without it. On GPUs `free.FREE` is turned on, UNTRIED of it once a burst has run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from policies.candidates.candidate import Group
from policies.candidates.free import FREE, UNTRIED
from policies.changes.legality import Refusal, derive
from policies.constants import constant
from policies.search.acquisition import score, score_first, unscored
from policies.search.avoid import Avoid
from policies.surrogate.surrogate import Surrogate
from trainer.estimate.candidates import Candidates, Integers, tabulate
from trainer.estimate.plan.choices import broken, written_out
from trainer.estimate.plan.search import Search, search
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import check
from trainer.recipe.sections import TuneSettings

MEMORY_ROOM = constant("memory_room")
SHORT_LIST = int(constant("short_list"))
EVENS_EXPERTS = ("moe_expert_capacity_factor", "moe_router_load_balancing_type")
# knobs that exclude some of the free settings: a recipe has either these knobs or those settings
EXCLUDING = ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute")
RARE_GARBAGE_COLLECTION: dict[str, Any] = {"manual_gc": True, "manual_gc_interval": 100}


# search spaces of the last recipes: a search takes seconds, and a study and its preview use the same one
MAX_KEPT = 4
_LAST_SPACES: dict[str, Search] = {}
_LAST_PRICED: list[Candidates] = []  # the table that `_with_free` returned last, with what was computed of it


def legal_space(base: Recipe, missing: Collection[str] = ()) -> Search:
    """Returns `plan`'s search space of a recipe, including recipes predicted at up to MEMORY_ROOM times the memory
    limit, and without those that offload more and are not surely faster. The spaces of the last recipes are cached.

    Knobs of `missing`, which need software that is not there, keep the recipe's values.
    """
    key = base.model_dump_json() + ",".join(sorted(missing))
    if key not in _LAST_SPACES:
        frozen = base.tune.model_copy(update={"freeze": (*base.tune.freeze, *missing)})
        found = search(base.model_copy(update={"tune": frozen}), room=MEMORY_ROOM)
        _LAST_SPACES[key] = _with_tune(found, base.tune)
        if len(_LAST_SPACES) > MAX_KEPT:
            del _LAST_SPACES[next(iter(_LAST_SPACES))]
    return _LAST_SPACES[key]


def _with_tune(found: Search, tune: TuneSettings) -> Search:
    finals = found.finals.take(np.flatnonzero(~found.finals.unsure))
    rows = replace(finals.candidates, base=finals.candidates.base.model_copy(update={"tune": tune}))
    return replace(
        found,
        base=found.base.model_copy(update={"tune": tune}),
        finals=replace(finals, candidates=rows),
    )


def layouts(
    space: Search, given: Recipe, incumbent: Recipe | None, surrogate: Surrogate, avoid: Avoid, *, min_fit: float
) -> Group:
    """Returns the short list from the space of the recipe `given`, scored against the incumbent (None: nothing runs
    yet)."""
    space = space if incumbent is None else with_incumbent_values(space, given, incumbent, surrogate)
    every = space.finals.candidates
    carried = frozenset(every.base.diff(space.base))
    free = [changes for changes in FREE if incumbent is not None or changes not in UNTRIED]
    priced = _with_free(every, avoid, free)
    rows = _short_list(priced, surrogate, avoid, min_fit)
    table, priced = every.take(rows), priced.take(rows)
    if incumbent is None:
        scores = score_first(priced, surrogate, avoid)
    else:
        now = surrogate.time.closed_form_of(incumbent)
        scores = score(priced, now, surrogate, avoid, min_fit=min_fit)
    return Group(
        table=table,
        scores=scores,
        recipe=lambda row: _row_recipe(table.recipe(row), space.unavoidable, carried, avoid, free),
    )


def all_that_fit(
    space: Search, given: Recipe, incumbent: Recipe, surrogate: Surrogate, avoid: Avoid, *, min_fit: float
) -> Group:
    """Returns every row of the space that should fit, without scores, for samplers that do not rank by the
    acquisition."""
    carried_space = with_incumbent_values(space, given, incumbent, surrogate)
    every = carried_space.finals.candidates
    table = every.take(np.flatnonzero((surrogate.memory.fits(every) >= min_fit) & ~avoid.refused_rows(every)))
    carried = frozenset(table.base.diff(space.base))
    return Group(
        table=table,
        scores=unscored(table.count),
        recipe=lambda row: _row_recipe(table.recipe(row), space.unavoidable, carried, avoid, FREE),
    )


def with_incumbent_values(space: Search, given: Recipe, incumbent: Recipe, surrogate: Surrogate) -> Search:
    """Copies the incumbent's values of knobs that `plan` does not vary (on GPUs, of those that the module's docstring
    names) into every row of the space of the recipe `given`. On CPUs also sets rare garbage collection if that is
    predicted to be faster."""
    table, on_cpu = space.finals.candidates, given.hardware.is_cpu
    moved = {knob: to for knob, (_, to) in given.diff(incumbent).items() if knob not in table.columns}
    kept = (
        moved if on_cpu else {knob: to for knob, to in moved.items() if knob in EVENS_EXPERTS or _is_tried_alone(knob)}
    )
    changes = kept | (RARE_GARBAGE_COLLECTION if on_cpu and _rare_collection_pays(incumbent, surrogate) else {})
    if not changes:
        return space
    carried = replace(table, base=table.base.replace(changes))
    return replace(space, finals=replace(space.finals, candidates=carried))


def _with_free(table: Candidates, avoid: Avoid, free: Sequence[dict[str, object]]) -> Candidates:
    """Returns the rows with the `free` settings that `_row_recipe` turns on, for predictions that are comparable with
    the incumbent, which has them too. A setting is on in all rows or in none, depending on whether the table's base
    may have it: the closed form counts it where it acts."""
    base = table.base
    plain = base.replace({name: False for name in EXCLUDING if base.knob(name)})
    for changes in () if base.hardware.is_cpu else free:
        legal = not isinstance(derive(plain, changes), Refusal)
        if legal and not avoid.warns_of(changes):
            base = base.replace(changes)
    if not any(last.base == base and last.columns is table.columns for last in _LAST_PRICED):
        _LAST_PRICED[:] = [replace(table, base=base)]
    return _LAST_PRICED[0]


def _is_tried_alone(knob: str) -> bool:
    return bool(KNOBS[knob].tries) and not any(knob in changes for changes in FREE)


def _rare_collection_pays(incumbent: Recipe, surrogate: Surrogate) -> bool:
    rarely = derive(incumbent, RARE_GARBAGE_COLLECTION)
    if isinstance(rarely, Refusal):
        return False
    now, then = surrogate.time.means(tabulate([incumbent, rarely]))
    return bool(now - then >= constant("min_expected_improvement"))


def _short_list(table: Candidates, surrogate: Surrogate, avoid: Avoid, min_fit: float) -> Integers:
    """Returns the rows to score: the fastest of those that are likely to fit and not refused; if there are none, those
    with the highest P(fits)."""
    fits, accepted = surrogate.memory.fits(table), ~avoid.refused_rows(table)
    likely = np.flatnonzero((fits >= min_fit) & accepted)
    if not len(likely):
        return np.argsort(np.where(accepted, -fits, np.inf), kind="stable")[:SHORT_LIST]
    those = table.take(likely)
    means = surrogate.time.means(those) - np.log(avoid.trust(those))
    return likely[np.argsort(means, kind="stable")[:SHORT_LIST]]


def _row_recipe(
    recipe: Recipe,
    unavoidable: frozenset[str],
    carried: frozenset[str],
    avoid: Avoid,
    free: Sequence[dict[str, object]],
) -> Recipe | None:
    """Returns the recipe of a row as it would run: with the `free` settings that act in it, without copied values that
    its layout refuses; None if it violates a rule."""
    recipe = written_out(recipe)
    for finding in check(recipe) if carried else ():
        if finding.settled and carried.issuperset(finding.settled):
            recipe = recipe.replace(finding.settled)
    if broken(recipe, unavoidable):
        return None
    for changes in () if recipe.hardware.is_cpu else free:
        if not avoid.warns_of(changes):
            derived = derive(recipe, changes)
            recipe = recipe if isinstance(derived, Refusal) or derived.digest() == recipe.digest() else derived
    return recipe
