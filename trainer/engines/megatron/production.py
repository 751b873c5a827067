"""Lists the differences between a burst of this engine and a run of the recipe's exported Megatron-LM command.

Every outcome of a recipe for GPUs has them, so that nobody takes its figures for production's. A recipe for CPUs has no
production run: Megatron-LM does not start without a GPU. Effects are estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainer.burst import Difference
from trainer.engines.megatron.fusions import has_apex
from trainer.recipe import Recipe
from trainer.recipe.predicates import is_moe


@dataclass(frozen=True, kw_only=True)
class InstalledLibraries:
    """The libraries of a production container, each true if this machine has it."""

    transformer_engine: bool
    apex: bool


@dataclass(frozen=True, kw_only=True)
class _Row:
    difference: Difference
    applies: Callable[[Recipe, InstalledLibraries], bool] = lambda recipe, here: True


def _local(recipe: Recipe) -> bool:
    return bool(recipe.knob("transformer_impl") == "local")


_ROWS = (
    _Row(
        applies=lambda recipe, here: not here.transformer_engine and not _local(recipe),
        difference=Difference(
            what="layers",
            here="Megatron-Core's local layers, nothing fused: Transformer Engine cannot be used on this machine",
            production="Transformer Engine's, with fused kernels",
            effect="slower and with larger activations: figures are comparable with each other, not with production",
        ),
    ),
    _Row(
        applies=lambda recipe, here: not here.transformer_engine and _local(recipe),
        difference=Difference(
            what="fused activation, dropout and rotation",
            here="off with local layers",
            production="on",
            effect="up to twice the experts' activations, 5-10 % of the time",
        ),
    ),
    _Row(
        applies=lambda recipe, here: here.transformer_engine and not here.apex,
        difference=Difference(
            what="gradient accumulation of the output layer",
            here="a separate kernel: apex is not installed",
            production="fused into the product that computes the gradient",
            effect="one more pass over the output layer's gradient per micro batch",
        ),
    ),
    _Row(
        applies=lambda recipe, here: is_moe(recipe) and not recipe.knob("moe_router_force_load_balancing"),
        difference=Difference(
            what="load of the experts",
            here="as an untrained router routes mock sequences",
            production="as the trained router routes the data",
            effect="time and memory of the most loaded expert's rank, either way",
        ),
    ),
    _Row(
        difference=Difference(
            what="data",
            here="mock sequences, drawn by every rank before the step is timed",
            production="read by a loader's workers on one rank of each tensor-parallel group and sent to the others",
            effect="a loader that falls behind is not seen",
        ),
    ),
    _Row(
        difference=Difference(
            what="between two steps",
            here="a barrier and a synchronisation, so that each step is timed alone",
            production="none; small reductions of flags, of the gradient norm and of the loss instead",
            effect="well below 1 % of a step of 100 ms or more, either way",
        ),
    ),
    _Row(
        difference=Difference(
            what="besides training",
            here="no checkpoint, evaluation or log; learning rate 3e-4 from the first step",
            production="as in the command",
            effect="none on a step; over hours they lower throughput",
        ),
    ),
)


def differences(recipe: Recipe, *, transformer_engine: bool) -> list[Difference]:
    """Returns the differences that apply to this recipe on this machine; [] for a recipe for CPUs."""
    if recipe.hardware.is_cpu:
        return []
    here = InstalledLibraries(transformer_engine=transformer_engine, apex=has_apex())
    return [row.difference for row in _ROWS if row.applies(recipe, here)]
