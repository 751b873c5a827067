"""Finds the best known recipe of a scenario, by true throughput: `plan`'s finalists, random legal recipes and hill
climbing. Kept in a table, keyed by the simulation's TRUTH_VERSION, because another simulation has other optima."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.places import table_rows
from benchmarks.policy.ground import Ground
from benchmarks.policy.scenarios import Scenario
from policies.candidates.layouts import legal_space
from policies.candidates.neighbours import moves
from policies.changes.legality import Refusal, derive
from policies.search.space import Point, space_of
from trainer.engines.simulated.truth import TRUTH_VERSION
from trainer.estimate.plan.choices import broken, written_out
from trainer.recipe import Recipe
from trainer.recipe.layout import sizes_of

SIMULATION = str(TRUTH_VERSION)
COLUMNS = ("scenario", "recipe", "simulation", "tokens_per_s_per_gpu", "changes")
WAYS = 2  # layouts of one size: its pipeline may be split in more than one way
LOOKED_AT = 100  # rows nearest to a point
TOGETHER = 12  # moves that gained by themselves and are tried on top of the best one
BETTER = 1e-4  # least improvement that counts, as a share of throughput


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Effort of the search: `climbs` hill climbs start from the best recipes of as many layouts."""

    planned: int = 120
    drawn: int = 150
    climbs: int = 4
    rounds: int = 8
    pairs: int = 2  # rounds in which a size and recompute move together, from the best of all


@dataclass(frozen=True, kw_only=True)
class Known:
    """The best known recipe: `changes` lead to it from the scenario's recipe, {knob: value}."""

    tokens_per_s_per_gpu: float
    changes: dict[str, Any]

    def recipe(self, scenario: Scenario) -> Recipe:
        return scenario.recipe.replace(self.changes)


def search_best(ground: Ground, effort: Effort) -> None:
    """Evaluates the true throughput of every promising recipe; `ground.best` then is the best known."""
    space = _Legal(ground.scenario.recipe)
    rng = random.Random(f"best {ground.scenario.name}")
    found = [*islice(ground.planned(), effort.planned), *islice(space.drawn(rng), effort.drawn)]
    for start in _best_of_layouts(ground, [ground.scenario.recipe, *found], effort.climbs):
        _climb(ground, space, start, effort.rounds)
    for _ in range(effort.pairs):
        before, recipe = ground.best
        better = max(_pairs(space, recipe), key=ground.truth, default=recipe)
        if ground.truth(better) <= before * (1 + BETTER):
            return
        _climb(ground, space, better, effort.rounds)


def _best_of_layouts(ground: Ground, recipes: Iterable[Recipe], count: int) -> list[Recipe]:
    ranked = sorted(recipes, key=lambda recipe: -ground.truth(recipe))
    firsts = {sizes_of(recipe): recipe for recipe in reversed(ranked)}
    return sorted(firsts.values(), key=lambda recipe: -ground.truth(recipe))[:count]


def _climb(ground: Ground, space: _Legal, recipe: Recipe, rounds: int) -> None:
    """Moves to the best neighbour, combined with other improving moves, until no neighbour is better or `rounds` are
    over."""
    for _ in range(rounds):
        least = ground.truth(recipe) * (1 + BETTER)
        gained = sorted(
            (each for each in _neighbours(space, recipe) if ground.truth(each) > least),
            key=lambda each: -ground.truth(each),
        )
        if not gained:
            return
        recipe = _together(ground, recipe, gained)


def _together(ground: Ground, recipe: Recipe, gained: Sequence[Recipe]) -> Recipe:
    """Returns the first neighbour plus the changes of the others, one after another as long as each improves."""
    best = gained[0]
    for other in gained[1:TOGETHER]:
        changes = {name: to for name, (_, to) in recipe.diff(other).items()}
        both = derive(best, changes)
        if not isinstance(both, Refusal) and ground.truth(both) > ground.truth(best) * (1 + BETTER):
            best = both
    return best


def _neighbours(space: _Legal, recipe: Recipe) -> Iterator[Recipe]:
    """Yields the policy's moves, and other values of one size with the knobs that must follow."""
    for move in moves(recipe):
        yield written_out(move.recipe)
    point = dict(space.space.point(recipe))
    for axis, sizes in space.sizes.items():
        for size in sizes:
            if size != point[axis]:
                yield from islice(space.nearest({**point, axis: size}), WAYS)


def _pairs(space: _Legal, recipe: Recipe) -> Iterator[Recipe]:
    """Yields every other value of every size with every recompute setting, because larger sizes need memory."""
    point = dict(space.space.point(recipe))
    recomputes = space.space.choices["recompute"].values if "recompute" in space.space.choices else ()
    for axis, sizes in space.sizes.items():
        for size in sizes:
            if size != point[axis]:
                for recompute in recomputes:
                    yield from islice(space.nearest({**point, axis: size, "recompute": recompute}), 1)


class _Legal:
    """Legal space of the product, with the product's axes: recipes can be drawn, or searched near a point."""

    def __init__(self, recipe: Recipe) -> None:
        found = legal_space(recipe)
        self._rows, self._fits, self._unavoidable = found.finals.candidates, found.finals.fits, found.unavoidable
        self.space = space_of(recipe, self._rows)
        points = [self.space.point(self._rows.recipe(int(row))) for row in found.ranking]
        self.sizes = {axis: sorted({int(point[axis]) for point in points}) for axis in self.space.sizes}

    def nearest(self, point: Point) -> Iterator[Recipe]:
        """Yields the legal ones of the LOOKED_AT nearest rows, nearest first."""
        for row in np.argsort(self.space.distance(self._rows, point), kind="stable")[:LOOKED_AT]:
            if recipe := self._recipe(int(row)):
                yield recipe

    def drawn(self, rng: random.Random) -> Iterator[Recipe]:
        """Yields legal recipes predicted to fit, at random and without end; nothing if nothing fits."""
        rows = np.flatnonzero(self._fits)
        while len(rows):
            if recipe := self._recipe(int(rng.choice(rows))):
                yield recipe

    def _recipe(self, row: int) -> Recipe | None:
        recipe = self._rows.recipe(row)
        return None if broken(recipe, self._unavoidable) else written_out(recipe)


def read_best(table: Path, chosen: Iterable[Scenario]) -> dict[str, Known]:
    """Returns the best known by scenario, for those whose recipe and simulation are unchanged."""
    if not table.exists():
        return {}
    rows = {(row["scenario"], row["recipe"], row["simulation"]): row for row in table_rows(table)}
    keys = {scenario.name: (scenario.name, scenario.recipe.digest(), SIMULATION) for scenario in chosen}
    return {
        name: Known(
            tokens_per_s_per_gpu=float(rows[key]["tokens_per_s_per_gpu"]), changes=json.loads(rows[key]["changes"])
        )
        for name, key in keys.items()
        if key in rows
    }


def write_best(table: Path, chosen: Iterable[Scenario], known: Mapping[str, Known]) -> None:
    """Writes the scenarios' rows; other rows of the same simulation stay."""
    written = {scenario.name: scenario for scenario in chosen if scenario.name in known}
    rows = {name: _row(scenario, known[name]) for name, scenario in written.items()}
    if table.exists():
        old = [row for row in table_rows(table) if row["simulation"] == SIMULATION]
        rows = {row["scenario"]: row for row in old} | rows
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[name] for name in sorted(rows))


def _row(scenario: Scenario, known: Known) -> dict[str, str]:
    values = (
        scenario.name,
        scenario.recipe.digest(),
        SIMULATION,
        f"{known.tokens_per_s_per_gpu:.3f}",
        json.dumps(known.changes),
    )
    return dict(zip(COLUMNS, values, strict=True))
