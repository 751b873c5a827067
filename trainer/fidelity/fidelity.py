"""The fidelity of a burst: the number of nodes and layers that it runs of its recipe, and the recipe of that smaller
run. Each GPU of a proxy does the same as in the target: TP, CP, EP, ETP, experts and tokens per GPU, micro batches,
layers per pipeline rank and chunk, precision and dispatcher are equal. The pipeline and DP are smaller, and with them
the number of layers and the global batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trainer.fidelity.layers import with_layers
from trainer.recipe import Recipe
from trainer.recipe.layout import grid_fits, layer_counts_of_ranks, layers_of_ranks, layout_of, stages_of
from trainer.recipe.rules.check import errors_of

# Knobs that split a pipeline, and their values where there is none
NO_PIPELINE: Mapping[str, Any] = {
    "pipeline_model_parallel_layout": None,
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
}


@dataclass(frozen=True, kw_only=True, order=True)
class Fidelity:
    """The size of a burst; `layers` excludes MTP layers."""

    nodes: int
    layers: int


class NoProxyKind(StrEnum):
    """The reason why no proxy of a size exists. The comment on each kind lists its figures."""

    # nodes, target_nodes; also if TP·PP·CP of the target does not divide its GPUs
    NOT_SMALLER = "not_smaller"
    STAGES = "stages"  # layers, of_stages: the numbers of layers that proxies can have
    GRID = "grid"  # gpus, group: TP·CP·PP of the proxy, which does not divide its GPUs
    EXPERTS = "experts"  # gpus, group: ETP·EP·PP of the proxy, which does not divide its GPUs
    SPLIT = "split"  # layers, wanted: layers of each pipeline rank of the target that the proxy's split does not give
    RULES = "rules"  # rules: ids of the rules that the proxy breaks and the target does not


@dataclass(frozen=True, kw_only=True)
class NoProxy:
    """The reason why there is no proxy of a size, with its figures."""

    kind: NoProxyKind
    figures: Mapping[str, Any] = field(default_factory=dict)


def full_size(recipe: Recipe) -> Fidelity:
    """Returns the fidelity of the recipe itself."""
    return Fidelity(nodes=recipe.cluster.nodes, layers=recipe.architecture.num_layers)


def proxy_of(recipe: Recipe, fidelity: Fidelity) -> Recipe | NoProxy:
    """Returns the recipe of the smaller run, or why there is none of this size."""
    if fidelity.nodes >= recipe.cluster.nodes or not grid_fits(recipe):
        return _none(NoProxyKind.NOT_SMALLER, nodes=fidelity.nodes, target_nodes=recipe.cluster.nodes)
    sizes = _pipelines(recipe)
    if fidelity.layers not in sizes:
        return _none(NoProxyKind.STAGES, layers=fidelity.layers, of_stages=list(sizes))
    return _proxy(recipe, nodes=fidelity.nodes, pp=sizes[fidelity.layers])


def at_fidelity(recipe: Recipe, fidelity: Fidelity | None) -> Recipe:
    """Returns the recipe that a burst runs; the recipe itself if `fidelity` is None.

    Raises ValueError if there is no proxy of this size.
    """
    if fidelity is None:
        return recipe
    found = proxy_of(recipe, fidelity)
    if isinstance(found, NoProxy):
        raise ValueError(f"{recipe.name} has no proxy of {fidelity}: {found.kind} {dict(found.figures)}")
    return found


def fidelities_of(recipe: Recipe, *, most_nodes: int) -> Iterator[tuple[Fidelity, Recipe]]:
    """Yields (fidelity, proxy) of every proxy on at most `most_nodes` nodes, in ascending order of nodes (powers of two
    and `most_nodes`), then of layers."""
    nodes = sorted({*(1 << power for power in range(most_nodes.bit_length())), most_nodes})
    for count in nodes:
        for pp in _pipelines(recipe).values():
            if count >= recipe.cluster.nodes or not grid_fits(recipe):
                continue
            found = _proxy(recipe, nodes=count, pp=pp)
            if isinstance(found, Recipe):
                yield full_size(found), found


def _pipelines(recipe: Recipe) -> dict[int, int]:
    """Returns the pipeline sizes of proxies by their number of layers, the smallest first.

    A proxy of one stage has no chunks. Of several sizes with equal layers, the smallest is returned.
    """
    found: dict[int, int] = {}
    for pp in range(1, layout_of(recipe).pp + 1):
        found.setdefault(len(_kept_layers(recipe, _kept_ranks(layout_of(recipe).pp, pp))), pp)
    return found


def _proxy(recipe: Recipe, *, nodes: int, pp: int) -> Recipe | NoProxy:
    target, gpus = layout_of(recipe), nodes * recipe.ranks_per_node
    if gpus % (group := target.tp * target.cp * pp):
        return _none(NoProxyKind.GRID, gpus=gpus, group=group)
    if gpus % (group := target.etp * target.ep * pp):
        return _none(NoProxyKind.EXPERTS, gpus=gpus, group=group)
    ranks = _kept_ranks(target.pp, pp)
    kept = _kept_layers(recipe, ranks)
    if not kept:
        return _none(NoProxyKind.SPLIT, layers=[], wanted=[])
    found = _resized(recipe, nodes=nodes, pp=pp, ranks=ranks, kept=kept)
    split, wanted = layer_counts_of_ranks(found), [layer_counts_of_ranks(recipe)[rank] for rank in ranks]
    if split != wanted:
        return _none(NoProxyKind.SPLIT, layers=split, wanted=wanted)
    broken = {finding.rule for finding in errors_of(found)} - {finding.rule for finding in errors_of(recipe)}
    return _none(NoProxyKind.RULES, rules=sorted(broken)) if broken else found


def _kept_ranks(pp: int, left: int) -> list[int]:
    """Returns the pipeline ranks of the target that `left` ranks represent: the first, the last and ranks evenly
    between. If `left` is 1, a middle rank, since most ranks have its layers."""
    return [pp // 2] if left == 1 else [round(rank * (pp - 1) / (left - 1)) for rank in range(left)]


def _kept_layers(recipe: Recipe, ranks: list[int]) -> list[int]:
    """Returns the decoder layers of these pipeline ranks in the model's order: chunk by chunk."""
    by_rank = layers_of_ranks(recipe)
    chunks = max(len(by_rank[rank]) for rank in ranks)
    return [layer for chunk in range(chunks) for rank in ranks for layer in by_rank[rank][chunk]]


def _resized(recipe: Recipe, *, nodes: int, pp: int, ranks: list[int], kept: list[int]) -> Recipe:
    model = with_layers(recipe.architecture, kept)
    knobs = dict(recipe.knobs)
    sizes: dict[str, Any] = {"pipeline_model_parallel_size": pp}
    if pp == 1:
        written = NO_PIPELINE if recipe.trainer is not None else NO_PIPELINE.keys() & knobs.keys()
        knobs |= {
            name: NO_PIPELINE[name] for name in written
        }  # the user's command would keep what the recipe does not name
        sizes["virtual_pipeline_model_parallel_size"] = None
    elif stages := stages_of(recipe):
        left = [stages[first + rank] for first in range(0, len(stages), layout_of(recipe).pp) for rank in ranks]
        knobs["pipeline_model_parallel_layout"] = "|".join(left)
        mtp = sum(stage.count("m") for stage in left)
        model = model.model_copy(update={"mtp_num_layers": mtp or None})
    target, gpus = layout_of(recipe), nodes * recipe.ranks_per_node
    dp, edp = gpus // (target.tp * target.cp * pp), gpus // (target.etp * target.ep * pp)
    instances = recipe.knob("num_distributed_optimizer_instances")
    if dp % instances or edp % instances:
        knobs["num_distributed_optimizer_instances"] = 1
    batch = recipe.num_microbatches * recipe.training.micro_batch_size * dp
    return recipe.model_copy(
        update={
            "model": model,
            "cluster": recipe.cluster.model_copy(update={"nodes": nodes}),
            "training": recipe.training.model_copy(update={"global_batch_size": batch}),
            "parallelism": recipe.parallelism.model_copy(update=sizes),
            "knobs": knobs,
        }
    )


def _none(kind: NoProxyKind, **figures: Any) -> NoProxy:
    return NoProxy(kind=kind, figures=figures)
