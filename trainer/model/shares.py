"""Counts the layers of a class (with experts, or without) by mixer and by feed-forward block; a layer of a hybrid model
may have only one of both. Figures are averaged over the layers of a class, so that the mean times the number of layers
is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from trainer.model.mixers import mixers
from trainer.recipe.architecture import Architecture, LayerKind


@dataclass(frozen=True, kw_only=True)
class LayerShares:
    """Fractions of a set of layers: those with each mixer, with attention, and with a feed-forward block.

    A layer may have no mixer: `mixers` then add up to less than 1."""

    mixers: dict[str, float]
    attention: float
    feed_forward: float

    @property
    def mixing(self) -> float:
        return sum(self.mixers.values())

    @property
    def scans(self) -> dict[str, float]:
        """Returns the shares of mixers with kernels other than attention, by mixer."""
        return {name: share for name, share in self.mixers.items() if mixers()[name].scan}


@lru_cache(maxsize=32)
def class_shares(model: Architecture, *, is_moe: bool) -> LayerShares:
    """Returns the shares of the layers with experts, or without; if the model has none of the class, those of one
    attention layer."""
    kinds = [kind for kind, moe in zip(model.layer_kinds, model.moe_layers, strict=True) if moe == is_moe]
    return _shares(kinds or [LayerKind("attention", "moe" if is_moe else "dense")])


@lru_cache(maxsize=16)
def model_shares(model: Architecture) -> LayerShares:
    """Returns the shares of mixers, attention and feed-forward blocks over all layers."""
    return _shares(model.layer_kinds)


def _shares(kinds: Sequence[LayerKind]) -> LayerShares:
    counts = Counter(kind.mixer for kind in kinds if kind.mixer != "none")
    return LayerShares(
        mixers={name: count / len(kinds) for name, count in counts.items()},
        attention=sum(mixers()[kind.mixer].attends for kind in kinds) / len(kinds),
        feed_forward=sum(kind.feed != "none" for kind in kinds) / len(kinds),
    )
