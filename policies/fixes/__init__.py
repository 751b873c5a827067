"""The known cures, one file per fix, found by being in this folder: `FIXES` maps a file's name to its `FIX`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from policies.changes.fix import Fix


def _discover() -> dict[str, Fix]:
    names = sorted(module.name for module in iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}").FIX for name in names}


FIXES: dict[str, Fix] = _discover()
# Fixes that make a recipe fit, in the order in which they are combined; the last resorts only when the others do not
FITTING = (
    "expandable_segments",
    "distributed_optimizer",
    "selective_recompute",
    "micro_batch_down",
    "precision_aware_optimizer",
    "more_expert_parallel",
    "full_recompute",
    "more_pipeline_parallel",
    "more_context_parallel",
    "more_tensor_parallel",
)
LAST_RESORTS = ("activation_offload", "optimizer_offload")
