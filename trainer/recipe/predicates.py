"""Predicates on recipes, used in tables: `all_of(on("cpu_offloading"), on_cpu)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.recipe.layout import layout_of
from trainer.recipe.settings import Settings

Test = Callable[[Settings], bool]


def on(name: str) -> Test:
    """Returns a test that the knob's value, its default included, is neither null, false, zero nor empty."""
    return lambda recipe: bool(recipe.knob(name))


def off(name: str) -> Test:
    return lambda recipe: not recipe.knob(name)


def among(name: str, *values: Any) -> Test:
    return lambda recipe: recipe.knob(name) in values


def above_one(name: str) -> Test:
    return lambda recipe: (recipe.knob(name) or 1) > 1


def lists(name: str, *words: str) -> Test:
    """Returns a test that a list knob has one of the words."""
    return lambda recipe: not set(words).isdisjoint(recipe.knob(name) or ())


def all_of(*tests: Test) -> Test:
    def every(recipe: Settings) -> bool:
        for test in tests:  # noqa: SIM110  all() over a generator takes twice as long, and most rules end here
            if not test(recipe):
                return False
        return True

    return every


def any_of(*tests: Test) -> Test:
    return lambda recipe: any(test(recipe) for test in tests)


def negated(test: Test) -> Test:
    return lambda recipe: not test(recipe)


def on_cpu(recipe: Settings) -> bool:
    return recipe.hardware.is_cpu


def on_gpu(recipe: Settings) -> bool:
    return not recipe.hardware.is_cpu


def is_moe(recipe: Settings) -> bool:
    return recipe.architecture.num_moe_experts is not None


def is_mla(recipe: Settings) -> bool:
    return recipe.architecture.multi_latent_attention


def is_delta_net(recipe: Settings) -> bool:
    return recipe.architecture.experimental_attention_variant == "gated_delta_net"


def is_dsa(recipe: Settings) -> bool:
    return recipe.architecture.experimental_attention_variant == "dsa"


def has_mtp(recipe: Settings) -> bool:
    return bool(recipe.architecture.mtp_num_layers)


def has_shared_experts(recipe: Settings) -> bool:
    return bool(recipe.architecture.moe_shared_expert_intermediate_size)


def splits_experts(recipe: Settings) -> bool:
    """Returns True if ETP is above 1, whether set or equal to TP by default."""
    return layout_of(recipe).etp > 1


def interleaved(recipe: Settings) -> bool:
    """Returns True if a pipeline rank has several chunks, by VPP or by a pipeline layout."""
    return layout_of(recipe).vpp > 1


def has_dense_layers(recipe: Settings) -> bool:
    return not all(recipe.architecture.moe_layers)


has_graphs: Test = negated(among("cuda_graph_impl", "none"))
recomputes: Test = all_of(
    among("recompute_granularity", "selective", "full"),
    negated(all_of(among("recompute_granularity", "selective"), among("recompute_modules", ()))),
)


def recomputed(*modules: str) -> Test:
    """Returns a test that one of the modules is recomputed selectively."""

    def test(recipe: Settings) -> bool:
        written = recipe.knob("recompute_modules")
        acting = ("core_attn",) if written is None else written
        return recipe.knob("recompute_granularity") == "selective" and not set(modules).isdisjoint(acting)

    return test


def fp8(recipe: Settings) -> bool:
    return recipe.training.precision.startswith(("fp8", "mxfp8"))


def fp4(recipe: Settings) -> bool:
    return recipe.training.precision == "nvfp4"


quantized = any_of(fp8, fp4)
