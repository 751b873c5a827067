"""The two recipes of a bisection from what the command line names: recipes, studies, trials or launch scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.export.source import source_at
from autotune.importing.found import Asked
from autotune.importing.reading import imported
from policies.bisect.differences import Ends, ends_of
from trainer.errors import BadInputError, Problem, refused
from trainer.recipe import Recipe

RECIPES = (".yaml", ".yml")


def ends_named(a: str, b: str, *, gpu: str | None) -> Ends:
    """Returns the two recipes with their differences. Raises BadInputError if there are none, or if A is no recipe."""
    found = ends_of(_recipe(a, gpu), _recipe(b, gpu))
    if not found.differences:
        idle = f" but {', '.join(each.name for each in found.idle)}, without effect here" if found.idle else ""
        raise BadInputError(
            Problem(where=f"{a} and {b}", what=f"they do not differ{idle}", hint="name two recipes that differ")
        )
    for end, named in ((frozenset[int](), a), (frozenset(range(len(found.differences))), b)):
        if not found.legal(end):
            raise refused(named, "it violates a rule and cannot be run", f"see `moe-autotune check {named}`")
    return found


def files_of(named: Sequence[str]) -> tuple[Path, ...]:
    """Returns the named files and folders that exist."""
    return tuple(path for path in map(Path, named) if path.exists())


def _recipe(named: str, gpu: str | None) -> Recipe:
    path = Path(named)
    if path.is_file() and path.suffix not in RECIPES:
        asked = Asked(file=named, gpu=gpu, tell=lambda line: print(line, file=sys.stderr))
        return imported(asked).recipe
    return source_at(named).recipe
