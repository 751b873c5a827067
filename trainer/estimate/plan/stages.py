"""Balanced pipeline layouts, in Megatron's own syntax, for layers that the number of stages does not divide.

The loss is in the last stage, multi-token prediction with it or in the stage before. Decoder layers are assigned one by
one to the pipeline rank with the least work, and there to the chunk with the least: a step waits for the slowest rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from trainer.model.flops import LayerFlops, layer_flops
from trainer.recipe.architecture import Architecture


# cached, because a search for the fewest nodes needs the same layouts for every number of nodes
@lru_cache(maxsize=1024)
def balanced_layouts(model: Architecture, seq_length: int, *, pp: int, vpp: int) -> tuple[str, ...]:
    """Returns layouts of PP·VPP stages: MTP in the stage of the loss, and in the one before; without those that would
    have an empty stage."""
    mtp = "m" * (model.mtp_num_layers or 0)
    tails = [[mtp + "L"], [mtp, "L"]] if mtp and pp * vpp > 2 else [[mtp + "L"]]
    splits = [_with_layers(model, seq_length, [""] * (pp * vpp - len(tail)) + tail, pp) for tail in tails]
    return tuple(layout_text(["E" + stages[0], *stages[1:]]) for stages in splits if all(stages))


def _with_layers(model: Architecture, seq_length: int, stages: Sequence[str], pp: int) -> list[str]:
    """Assigns each decoder layer to the least loaded stage of the least loaded rank, none behind MTP.

    Of equally loaded ranks it takes the last one, which holds fewest micro batches.
    """
    flops = layer_flops(model, seq_length)
    loads = [_load(flops, model.mtp_num_layers or 0, stage) for stage in stages]
    counts = [0] * len(stages)
    after_mtp = next((stage for stage, text in enumerate(stages) if "m" in text), len(stages) - 1) + 1
    ranks = range(min(pp, after_mtp))
    of_ranks = [(sum(loads[rank::pp]), -rank) for rank in ranks]
    for _ in range(model.num_layers):
        rank = -min(of_ranks)[1]
        stage = min(range(rank, after_mtp, pp), key=loads.__getitem__)
        loads[stage] += 1.0
        counts[stage] += 1
        of_ranks[rank] = (sum(loads[rank::pp]), -rank)
    return ["t" * count + stage for count, stage in zip(counts, stages, strict=True)]


def _load(flops: LayerFlops, mtp: int, stage: str) -> float:
    """Returns the FLOPs of loss and MTP in a stage, in units of the heaviest decoder layer.

    The logits of every MTP layer are computed with the loss.
    """
    return (stage.count("m") * flops.mtp + (1 + mtp) * stage.count("L") * flops.head) / max(flops.layers)


def layout_text(stages: Sequence[str]) -> str:
    """Returns Megatron's short form: ["Ettt", "tt", "tt", "mL"] is "Et*3|(tt|)*2mL"."""
    parts: list[str] = []
    for stage, alike in groupby(stages[:-1]):
        count, text = len(list(alike)), _run_lengths(stage) + "|"
        parts.append(f"({text})*{count}" if count > 1 else text)
    return "".join(parts) + _run_lengths(stages[-1])


def _run_lengths(stage: str) -> str:
    runs = [(letter, len(list(run))) for letter, run in groupby(stage)]
    return "".join(letter * count if count < 3 else f"{letter}*{count}" for letter, count in runs)
