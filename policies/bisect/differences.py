"""The differences between two recipes, and the recipe that takes some of them from B.

A difference is a change of knobs that belong together (`policies.tuner.decomposition`), or of one other setting: an
environment variable, an option of the user's training command, another entry of the `trainer` section. Changes that
have no effect with the other settings are set apart (`Ends.idle`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from policies.bisect.question import Subset
from policies.tuner.decomposition import members
from trainer.errors import BadInputError, Problem
from trainer.legality import findings_of
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules import FindingKind
from trainer.recipe.source import Source
from trainer.recipe.validation import validated

Places = Mapping[str, Any]
COMMAND, ENV, RANKS_ENV = "trainer.command", "trainer.env.", "burst.env."


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference between recipes A and B that is tested as one.

    `changes` maps a knob or a place of the recipe to its values in A and in B; None: absent there.
    """

    name: str
    changes: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Two recipes that train one model on one cluster, and their differences.

    `idle` are differences without effect on a measurement.
    """

    a: Recipe
    b: Recipe
    differences: tuple[Difference, ...]
    idle: tuple[Difference, ...] = ()

    def recipe(self, subset: Subset) -> Recipe:
        """Returns A with these differences taken from B. Raises BadInputError if the result is not a valid recipe."""
        taken = {place: after for at in sorted(subset) for place, (_, after) in self.differences[at].changes.items()}
        return _with(self.a, taken)

    @cached_property
    def legal(self) -> Callable[[Subset], bool]:
        """Returns a cached function that returns whether the recipe of a subset violates no rule."""
        return cache(self._is_legal)

    def _is_legal(self, subset: Subset) -> bool:
        try:
            found = findings_of(self.recipe(subset))
        except BadInputError:
            return False
        return all(finding.kind is not FindingKind.ERROR for finding in found)


def ends_of(a: Recipe, b: Recipe) -> Ends:
    """Returns the two recipes with their differences. B takes A's name, burst (variables aside) and tuning settings.

    Raises BadInputError if they train different models or run on different clusters, engines, machines or kinds of
    trainer.
    """
    _refuse_incomparable(a, b)
    burst = a.burst.model_copy(update={"env": b.burst.env})
    b = b.model_copy(update={"name": a.name, "burst": burst, "tune": a.tune})
    found = [
        Difference(name=_name(member.knobs), changes={knob: (a.knob(knob), b.knob(knob)) for knob in member.knobs})
        for member in members(a, b)
    ]
    was, now = _places(a), _places(b)
    moved = [place for place in {**was, **now} if was.get(place) != now.get(place)]
    found += [Difference(name=place, changes={place: (was.get(place), now.get(place))}) for place in moved]
    idle = [each for each in found if _is_idle(a, b, each)]
    acting = tuple(each for each in found if each not in idle)
    return Ends(a=a, b=b, differences=acting, idle=tuple(idle))


def _refuse_incomparable(a: Recipe, b: Recipe) -> None:
    same = {
        "model": (a.architecture, b.architecture),
        "cluster": (_cluster(a), _cluster(b)),
        "burst.engine": (a.burst.engine, b.burst.engine),
        "burst.machine": (a.burst.machine, b.burst.machine),
        "trainer.kind": (a.trainer and a.trainer.kind, b.trainer and b.trainer.kind),
    }
    problems = [
        Problem(
            where=place,
            what="A and B differ in it, and no burst could be compared",
            hint="bisect finds what differs in how one model is trained on one cluster: make it the same in both",
        )
        for place, (one, other) in same.items()
        if one != other
    ]
    if problems:
        raise BadInputError(*problems)


def _cluster(recipe: Recipe) -> tuple[object, ...]:
    """Returns the cluster, with values that the recipe leaves out filled in from the hardware table."""
    cluster = recipe.cluster
    return cluster.gpu, cluster.nodes, recipe.ranks_per_node, recipe.memory_limit_gib, cluster.network_gbit_s


def _name(knobs: Sequence[str]) -> str:
    return knobs[0] if len(knobs) == 1 else f"{knobs[0]} and {len(knobs) - 1} more"


def _is_idle(a: Recipe, b: Recipe, difference: Difference) -> bool:
    """Returns whether a difference changes nothing that is measured, neither in A nor in B."""
    forth = _with(a, {place: after for place, (_, after) in difference.changes.items()})
    back = _with(b, {place: before for place, (before, _) in difference.changes.items()})
    return forth.digest() == a.digest() and back.digest() == b.digest()


def _with(recipe: Recipe, values: Places) -> Recipe:
    changed = recipe.replace({place: value for place, value in values.items() if place in KNOBS})
    places = {place: value for place, value in values.items() if place not in KNOBS}
    if not places:
        return changed
    kept = {place: value for place, value in {**_places(recipe), **places}.items() if value is not None}
    data = changed.model_dump()
    data["burst"]["env"] = _below(kept, RANKS_ENV)
    data["trainer"] = None if recipe.trainer is None else _trainer(kept)
    return validated(Recipe, Source(name=recipe.name, data=data))


def _places(recipe: Recipe) -> dict[str, Any]:
    """Returns the settings that are not knobs, by place; each variable and each option of the command is one."""
    ours = {f"{RANKS_ENV}{name}": value for name, value in recipe.burst.env.items()}
    if recipe.trainer is None:
        return ours
    data = recipe.trainer.model_dump()
    command, env = data.pop("command"), data.pop("env")
    found = ours | {f"trainer.{name}": value for name, value in data.items()}
    found |= {f"{ENV}{name}": value for name, value in env.items()}
    return found | _options(command)


def _options(command: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the arguments of a command by option, as `trainer.command --flag`; those before the first option are
    under `trainer.command`."""
    found: dict[str, tuple[str, ...]] = {}
    place = COMMAND
    for word in command:
        if word.startswith("--"):
            place = f"{COMMAND} {word.partition('=')[0]}"
        found[place] = (*found.get(place, ()), word)
    return found


def _trainer(places: Places) -> dict[str, Any]:
    """Returns the data of the recipe's `trainer` section from its places."""
    options = [words for place, words in places.items() if place == COMMAND or place.startswith(f"{COMMAND} ")]
    others = {place: value for place, value in places.items() if not place.startswith((COMMAND, ENV, RANKS_ENV))}
    command = tuple(word for words in options for word in words)
    return {**_below(others, "trainer."), "env": _below(places, ENV), "command": command}


def _below(places: Places, prefix: str) -> dict[str, Any]:
    return {place.removeprefix(prefix): value for place, value in places.items() if place.startswith(prefix)}
