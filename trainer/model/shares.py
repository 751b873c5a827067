"""Counts which layers of a model mix tokens how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from trainer.model.mixers import mixers
from trainer.recipe.architecture import Architecture, LayerKind


@dataclass(frozen=True, kw_only=True)
class LayerShares:
    """Shares of some layers: by mixer (those without one left out), and of those with a mixer that does not attend."""

    mixers: dict[str, float]
    scans: float


@lru_cache(maxsize=16)
def model_shares(model: Architecture) -> LayerShares:
    """Returns the shares of all layers."""
    return _shares(model.layer_kinds)


def _shares(kinds: Sequence[LayerKind]) -> LayerShares:
    counts = Counter(kind.mixer for kind in kinds if kind.mixer != "none")
    return LayerShares(
        mixers={name: count / len(kinds) for name, count in counts.items()},
        scans=sum(count for name, count in counts.items() if not mixers()[name].attends) / len(kinds),
    )
