"""The load of the hottest expert rank, where experts' loads differ by a machine's routing."""

from __future__ import annotations

from statistics import NormalDist

from trainer.recipe.layout import layers_of_ranks, layout_of
from trainer.recipe.machine import Machine
from trainer.recipe.schema import Recipe


def usual_imbalance(recipe: Recipe, machine: Machine) -> tuple[float, ...]:
    """Returns, by pipeline rank, the tokens of its hottest expert rank over the mean.

    A rank has several experts in each layer, whose sum varies less than each expert's load.
    """
    model, layout = recipe.architecture, layout_of(recipe)
    if recipe.knob("moe_router_force_load_balancing") or not model.num_moe_experts or layout.ep == 1:
        return (1.0,) * layout.pp
    hottest = NormalDist().inv_cdf((layout.ep - 0.375) / (layout.ep + 0.25))  # expected largest of EP draws (Blom)
    experts, flags = model.num_moe_experts / layout.ep, model.moe_layers
    counts = [sum(flags[number] for chunk in chunks for number in chunk) for chunks in layers_of_ranks(recipe)]
    return tuple(1 + machine.routing.skew * hottest / (experts * max(1, count)) ** 0.5 for count in counts)
