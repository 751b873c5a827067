"""The contents of each model chunk of each pipeline rank: layers, ends of the model, and their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainer.model.layer import LayerParameters
from trainer.model.parameters import kind_parameters, mtp_parameters, table_parameters
from trainer.recipe.architecture import Architecture, LayerKind
from trainer.recipe.layout import layers_of_ranks, layout_of, mtp_layers_of_ranks
from trainer.recipe.schema import Recipe


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One model chunk of a pipeline rank: its decoder layers, the MTP layers after them, and the ends of the model.

    dense and experts: the parameters of it that one rank holds.
    """

    layers: tuple[int, ...]
    mtp: int
    embeds: bool
    heads: bool
    dense: float
    experts: float


def stages_of(recipe: Recipe) -> tuple[tuple[Stage, ...], ...]:
    """Returns the stages, [PP][VPP]."""
    held, mtp, layout = layers_of_ranks(recipe), mtp_layers_of_ranks(recipe), layout_of(recipe)
    model, kinds = recipe.architecture, recipe.architecture.layer_kinds
    found = []
    for rank in range(layout.pp):
        chunks = []
        for chunk in range(layout.vpp):
            embeds = rank == 0 and chunk == 0
            heads = rank == layout.pp - 1 and chunk == layout.vpp - 1
            own = [_parameters(model, kinds[layer]) for layer in held[rank][chunk]]
            predicting = mtp[rank] if chunk == layout.vpp - 1 else 0
            own += [mtp_parameters(model)] * min(predicting, model.most_mtp_layers)
            tables = (embeds + heads) * table_parameters(model, layout.tp)
            chunks.append(
                Stage(
                    layers=tuple(held[rank][chunk]),
                    mtp=predicting,
                    embeds=embeds,
                    heads=heads,
                    dense=float(tables + sum(layer.dense_of_rank(layout.tp) for layer in own)),
                    experts=float(sum(layer.experts_of_rank(layout.ep, layout.etp) for layer in own)),
                )
            )
        found.append(tuple(chunks))
    return tuple(found)


@cache
def _parameters(model: Architecture, kind: LayerKind) -> LayerParameters:
    return kind_parameters(model, kind)
