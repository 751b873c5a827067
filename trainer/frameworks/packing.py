"""Sequences that a trainer's own command packs.

No recipe expresses that, and CUDA graphs cannot adapt to their lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.frameworks.reading import Kept
from trainer.recipe import Recipe
from trainer.recipe.predicates import has_graphs
from trainer.recipe.rules import Finding, FindingKind
from trainer.recipe.rules.rule import FrameworkName

PACKED_WITH_GRAPHS = "packing-with-graphs"
_KEPT = "it packs sequences of several lengths: bursts and estimates run one length, as CUDA graphs need it"
_SOURCE = (
    "Megatron-Bridge 0.6.2 training/config.py:1179: a graph needs pad_to_max_length, and padded boundaries where it "
    "holds attention; a graph is captured for one sequence length and micro batch"
)


def kept_packing(words: Sequence[str]) -> tuple[Kept, ...]:
    """Returns the notes of an import on words that pack sequences: they stay as they are."""
    return tuple(Kept(words=each, why=_KEPT) for each in words)


def packed_findings(words: Sequence[str], recipe: Recipe, framework: FrameworkName) -> list[Finding]:
    """Returns a warning if a command packs sequences and the recipe has CUDA graphs."""
    if not words or not has_graphs(recipe):
        return []
    return [
        Finding(
            rule=PACKED_WITH_GRAPHS,
            kind=FindingKind.WARNING,
            message=f"trainer.command has {', '.join(words)}, which packs sequences of several lengths, and the recipe "
            "has CUDA graphs, which are captured for one sequence length and micro batch",
            hint="set cuda_graph_impl to none for packed data, or pad every pack to one length",
            knobs=("cuda_graph_impl",),
            source=_SOURCE,
            binds=(framework,),
        )
    ]
