"""Groups of a probe: each file of this folder defines one as `GROUP`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from trainer.microbenchmarks.group import Group
from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe


@cache
def groups() -> dict[str, Group]:
    """Returns every group by its name, in the order in which a probe measures them."""
    found = [import_module(f"{__name__}.{module.name}").GROUP for module in iter_modules(__path__)]
    return {group.name: group for group in sorted(found, key=lambda group: group.order)}


def rows_of(recipe: Recipe) -> list[Row]:
    """Returns the rows that a probe of this recipe plans, without figures."""
    return [row for group in groups().values() for row in group.rows(recipe)]
