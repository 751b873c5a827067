"""Writes a recipe in another tool's format.

Every file here with a `TARGET`, and every framework with a script, is a target; neither is registered elsewhere.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pkgutil import iter_modules

from autotune.export.script import framework_target
from autotune.export.target import Context, Provenance, Target
from trainer.errors import BadInputError, Problem
from trainer.frameworks import frameworks
from trainer.recipe import Recipe


def targets() -> dict[str, Target]:
    """Returns every target by name: the files here, and the frameworks that have a script."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    here = (getattr(module, "TARGET", None) for module in modules)
    found = [*here, *map(framework_target, frameworks())]
    return {target.name: target for target in found if isinstance(target, Target)}


def export(recipe: Recipe, to: str, context: Context | None = None) -> str:
    """Returns the recipe as text for target `to`. Raises BadInputError if there is no such target, or no such version
    of it."""
    return target_named(to).render(recipe, context or Context())


def target_named(name: str) -> Target:
    """Returns the target of this name. Raises BadInputError, which lists the known names, if there is none."""
    found = targets()
    if name in found:
        return found[name]
    known = ", ".join(sorted(found))
    near = get_close_matches(name, found, n=1)
    hint = f"did you mean {near[0]}? There are {known}" if near else f"one of {known}"
    raise BadInputError(Problem(where=f"--to {name}", what="no such target", hint=hint))


__all__ = ["Context", "Provenance", "Target", "export", "target_named", "targets"]
