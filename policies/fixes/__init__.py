"""The known cures, one file a fix, found by being here: `FIXES` maps a file's name to its `FIX`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from policies.fix import Fix


def _discover() -> dict[str, Fix]:
    names = sorted(module.name for module in iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}").FIX for name in names}


FIXES: dict[str, Fix] = _discover()
