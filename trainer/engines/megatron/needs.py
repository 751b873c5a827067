"""Finds the settings of a recipe that need Transformer Engine, so that none is dropped silently where it is missing.

Megatron-Core refuses some of them late and ignores others; here all are reported before the model is built.
"""

from __future__ import annotations

from trainer.engines.megatron import compat
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS
from trainer.recipe.rules.local import needing, needing_fields


def missing_transformer_engine(recipe: Recipe) -> str | None:
    """Returns the message for a recipe that needs Transformer Engine where it is missing; None if the recipe does not
    need it."""
    needed = [f"{name}: {value}" for name, value in (needing(recipe) | needing_fields(recipe)).items()]
    if not needed:
        return None
    return (
        f"Transformer Engine cannot be used here, and needs it: {', '.join(needed)} (pip install 'moe-autotune[gpu]')"
    )


def with_local_layers(recipe: Recipe) -> Recipe:
    """Returns the recipe without the knobs that need Transformer Engine, and without grouped GEMM if the package for
    local layers is missing too."""
    plain = {knob: KNOBS[knob].default for knob in needing(recipe)}
    if not recipe.hardware.is_cpu and not compat.has_grouped_gemm():
        plain["moe_grouped_gemm"] = False
    return recipe.replace(plain)
