"""The parallel sizes of a recipe, for attention's grid of ranks and for the experts' grid.

Attention: world = TP·CP·PP·DP. Experts, folded over the same ranks: world = ETP·EP·PP·EDP. EP does not multiply into
the model-parallel product (source: Megatron-Core parallel_state.py, arXiv 2504.14960).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from trainer.recipe.settings import Settings

_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d+))?")
MAX_LETTERS = 100_000  # most letters of a layout with its repetitions expanded
_REPEAT = re.compile(r"([EtmL|])\*(\d+)")


@dataclass(frozen=True)
class Layout:
    """Parallel sizes of one recipe, each computed on access."""

    recipe: Settings

    @property
    def world(self) -> int:
        return self.recipe.world_size

    @property
    def tp(self) -> int:
        return self.recipe.parallelism.tensor_model_parallel_size

    @property
    def pp(self) -> int:
        return self.recipe.parallelism.pipeline_model_parallel_size

    @property
    def cp(self) -> int:
        return self.recipe.parallelism.context_parallel_size

    @property
    def dp(self) -> int:
        """Returns the DP size, at least 1; rounded down if the layout is illegal."""
        return self.recipe.data_parallel_size

    @property
    def ep(self) -> int:
        return self.recipe.parallelism.expert_model_parallel_size

    @property
    def etp(self) -> int:
        return self.recipe.expert_tensor_parallel_size

    @property
    def edp(self) -> int:
        """Returns the experts' DP size, at least 1; rounded down if the layout is illegal."""
        return max(1, self.world // (self.etp * self.ep * self.pp))

    @property
    def vpp(self) -> int:
        """Returns the model chunks per rank, 1 without interleaving."""
        written = self.recipe.parallelism.virtual_pipeline_model_parallel_size
        return written or max(1, len(stages_of(self.recipe)) // self.pp)


def layout_of(recipe: Settings) -> Layout:
    return Layout(recipe)


def grid_fits(recipe: Settings) -> bool:
    """Returns whether TP·PP·CP divides the world size; else DP and the number of micro batches are rounded down and
    mean nothing."""
    sizes = recipe.parallelism
    group = sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size * sizes.context_parallel_size
    return recipe.world_size % group == 0


def sizes_of(recipe: Settings) -> tuple[int, int, int, int, int, int]:
    """Returns TP, PP, VPP, CP, EP, ETP, which identify a layout."""
    now = layout_of(recipe)
    return now.tp, now.pp, now.vpp, now.cp, now.ep, now.etp


def pipeline_stages(text: str) -> list[str]:
    """Returns the stages of Megatron's layout text, each as letters of E, t, m, L: "Et*2|(t|)*2mL" → ["Ett", "t", "t",
    "mL"].

    Returns [] for an empty text. Raises ValueError for an invalid one.
    """
    return list(_pipeline_stages(text))


@lru_cache  # predicates of rules read the same texts again and again
def _pipeline_stages(text: str) -> tuple[str, ...]:
    plain = text.replace(",", "").replace(" ", "")
    while (expanded := _GROUP.sub(lambda m: _repeated(m[1], m[2] or "1"), plain)) != plain:
        plain = expanded
    plain = _REPEAT.sub(lambda m: _repeated(m[1], m[2]), plain)
    if strange := set(plain) - set("EtmL|"):
        raise ValueError(f"{''.join(sorted(strange))!r} is not valid in a pipeline layout: E, t, m, L, |, *n, ( )")
    return tuple(plain.split("|")) if plain else ()


def _repeated(text: str, digits: str) -> str:
    """Returns the text repeated. Raises ValueError for more letters than any model has layers."""
    if len(digits) > 5 or len(text) * int(digits) > MAX_LETTERS:
        raise ValueError(f"*{digits} is not valid in a pipeline layout: no model has so many layers")
    return text * int(digits)


def stages_of(recipe: Settings) -> list[str]:
    """Returns the stages of the recipe's pipeline layout; [] if it has none or an invalid one, which a rule reports."""
    try:
        return pipeline_stages(recipe.knob("pipeline_model_parallel_layout") or "")
    except ValueError:
        return []


def layers_of_ranks(recipe: Settings) -> list[list[list[int]]]:
    """Returns the decoder layers (counted from 0) of each chunk of each pipeline rank: [PP][VPP][layers].

    Stages follow each other chunk by chunk: stage s is chunk s // PP of rank s % PP. MTP layers are not decoder layers.
    An illegal split places only the layers that the model has.
    """
    layout, layers = layout_of(recipe), len(recipe.architecture.moe_layers)
    counts = [text.count("t") for text in stages_of(recipe)] or _chunked(layer_counts_of_ranks(recipe), layout.vpp)
    ranks: list[list[list[int]]] = [[] for _ in range(layout.pp)]
    first = 0
    for stage, count in enumerate(max(0, count) for count in counts):
        ranks[stage % layout.pp].append(list(range(min(first, layers), min(first + count, layers))))
        first += count
    return ranks


def mtp_layers_of_ranks(recipe: Settings) -> list[int]:
    """Returns the number of multi-token-prediction layers of each pipeline rank, int[PP]: by the pipeline layout, else
    all on the last rank."""
    pp = layout_of(recipe).pp
    if stages := stages_of(recipe):
        return [sum(stage.count("m") for stage in stages[rank::pp]) for rank in range(pp)]
    return [0] * (pp - 1) + [recipe.architecture.mtp_num_layers or 0]


def _chunked(by_rank: list[int], chunks: int) -> list[int]:
    """Returns the number of layers of every stage, in order: each rank's layers spread evenly over its chunks, the
    first ones fuller."""
    return [layers // chunks + (chunk < layers % chunks) for chunk in range(chunks) for layers in by_rank]


def layer_counts_of_ranks(recipe: Settings) -> list[int]:
    """Returns the number of decoder layers of each pipeline rank (int[PP], first to last), MTP layers not counted."""
    layout, layers = layout_of(recipe), recipe.architecture.num_layers
    if stages := stages_of(recipe):
        return [sum(stage.count("t") for stage in stages[rank :: layout.pp]) for rank in range(layout.pp)]
    first = recipe.knob("num_layers_in_first_pipeline_stage")
    last = recipe.knob("num_layers_in_last_pipeline_stage")
    if layout.pp > 1 and (first or last):
        middle = layout.pp - bool(first) - bool(last)
        each = (layers - (first or 0) - (last or 0)) // middle if middle else 0
        return [*([first] if first else []), *([each] * middle), *([last] if last else [])]
    flags = [
        recipe.knob("account_for_embedding_in_pipeline_split"),
        recipe.knob("account_for_loss_in_pipeline_split"),
    ]
    each, over = divmod(layers + sum(flags), layout.pp)
    counts = [each + (rank < over) for rank in range(layout.pp)]
    counts[0] -= flags[0]
    counts[-1] -= flags[1]
    return counts
