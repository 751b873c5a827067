"""The known fixes: each file of this folder defines one as `FIX`; `FIXES` maps the file's name to it."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from policies.changes.fix import Fix


def _discover() -> dict[str, Fix]:
    names = sorted(module.name for module in iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}").FIX for name in names}


FIXES: dict[str, Fix] = _discover()
_BY_FIT_ORDER = sorted((fix for fix in FIXES.values() if fix.fit_order is not None), key=lambda fix: fix.fit_order or 0)
FITTING = tuple(fix.name for fix in _BY_FIT_ORDER if not fix.last_resort)
LAST_RESORTS = tuple(fix.name for fix in _BY_FIT_ORDER if fix.last_resort)
