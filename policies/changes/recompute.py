"""The levels of activation recompute that a model offers, from none to all.

Order by architecture: the attention part first (`mla_up_proj` under MLA, `core_attn` where attention is not fused),
then `moe_act`, then with `layernorm`, the whole `moe` when the narrow ones do not fit (`mlp` in a dense model),
everything last.

Source: Megatron-Bridge, skills/nemo-mbridge-perf-moe-optimization-workflow (recompute by architecture).
"""

from __future__ import annotations

from policies.changes.fix import KnobChanges
from trainer.recipe import Recipe

NONE: KnobChanges = {
    "recompute_granularity": None,
    "recompute_modules": None,
    "recompute_method": None,
    "recompute_num_layers": None,
}
FULL: KnobChanges = NONE | {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


def selective(*modules: str) -> KnobChanges:
    return NONE | {"recompute_granularity": "selective", "recompute_modules": modules}


def levels(recipe: Recipe) -> list[KnobChanges]:
    """Returns the levels from no recompute to full. Fused attention on GPUs already keeps no scores: `core_attn` is
    for CPUs."""
    model = recipe.architecture
    attention = ("mla_up_proj",) if model.multi_latent_attention else ("core_attn",) if recipe.hardware.is_cpu else ()
    steps: list[tuple[str, ...]] = [attention]
    if model.num_moe_experts is not None:
        steps += [("moe_act",), (*attention, "layernorm", "moe_act"), (*attention, "moe")]
    else:
        steps += [(*attention, "mlp")]
    return [NONE, *(selective(*modules) for modules in steps if modules), FULL]


def lighter(recipe: Recipe) -> list[KnobChanges]:
    """Returns levels below the current setting, the lightest first."""
    here = position(recipe)
    return [level for at, level in enumerate(levels(recipe)) if at < here]


def lighter_with_room(recipe: Recipe) -> list[KnobChanges]:
    """Returns lighter levels with the same micro batch, then with a half, a quarter, ... of it to make room."""
    size = recipe.training.micro_batch_size
    smaller = [{"micro_batch_size": size // divisor} for divisor in (2, 4, 8) if size % divisor == 0]
    return [*lighter(recipe), *(level | paid for paid in smaller for level in lighter(recipe))]


def heavier(recipe: Recipe) -> list[KnobChanges]:
    """Returns levels above the current setting, lightest first; the last is full recompute."""
    here = position(recipe)
    return [level for at, level in enumerate(levels(recipe)) if at > here]


def position(recipe: Recipe) -> float:
    """Returns the level of a recipe.

    One that recomputes a set of modules between two levels is half a level above the lower.
    """
    granularity = recipe.knob("recompute_granularity")
    found = levels(recipe)
    if granularity is None:
        return 0.0
    if granularity == "full":
        return float(len(found) - 1)
    modules = set(recipe.knob("recompute_modules") or ("core_attn",))
    below = 0.0
    for at, level in enumerate(found[1:-1], start=1):
        covered = set(level["recompute_modules"])
        if covered == modules:
            return float(at)
        if covered < modules:
            below = float(at)
    return below + 0.5
