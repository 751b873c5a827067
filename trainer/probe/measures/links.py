"""Measures collectives, sends, dispatches and copies between the ranks of a probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.microbenchmarks.row import Row
from trainer.model.layer import expert_input
from trainer.probe.bench import Bench, UnavailableError
from trainer.probe.measures.compute import tokens_of
from trainer.recipe import Recipe

GB = 1e9


def ring(bench: Bench, row: Row) -> list[float]:
    """Returns the µs of a reduce-scatter; on CPUs of an all-gather of as many bytes, because gloo has no
    reduce-scatter."""
    count, stride = int(row.sizes["ranks"]), int(row.sizes["stride"])
    group = bench.group(count, stride)
    share = max(1, int(row.sizes["gb"] * GB / 4 / count))
    part = bench.tensor(share, dtype=bench.torch.float32)
    if bench.on_cpu:
        parts = [bench.torch.empty_like(part) for _ in range(count)]
        return bench.repeats(lambda: bench.dist.all_gather(parts, part, group=group), together=range(bench.world))
    whole = bench.tensor(share * count, dtype=bench.torch.float32)
    work = bench.dist.reduce_scatter_tensor
    return bench.repeats(lambda: work(part, whole, group=group), together=range(bench.world))


def send(bench: Bench, row: Row) -> list[float]:
    """Returns the µs of a send from the lower rank of every pair to the higher."""
    stride = int(row.sizes["stride"])
    group, ranks = bench.group(2, stride), bench.ranks(2, stride)
    data = bench.tensor(max(1, int(row.sizes["gb"] * GB / 4)), dtype=bench.torch.float32)

    def work() -> None:
        if ranks is not None and bench.rank == ranks[0]:
            bench.dist.send(data, ranks[1], group=group)
        elif ranks is not None:
            bench.dist.recv(data, ranks[0], group=group)

    return bench.repeats(work, together=range(bench.world))


def dispatch(bench: Bench, row: Row) -> list[float]:
    recipe = row.recipe(bench.recipe)
    return bench.repeats(dispatching(bench, recipe), together=range(bench.world))


def dispatching(bench: Bench, recipe: Recipe) -> Callable[[], object]:
    """Returns the work of one dispatch of a layer's micro batch by the recipe's library, at a balanced load."""
    ep = recipe.parallelism.expert_model_parallel_size
    group = bench.group(ep, 1)
    kind = str(recipe.knob("moe_token_dispatcher_type"))
    if kind == "flex":
        from trainer.engines.megatron.flex import flex_dispatch

        made = flex_dispatch(recipe, group, bench.device.name)
        if made is None:
            raise UnavailableError(f"{recipe.knob('moe_flex_dispatcher_backend')} is not installed")
        return made
    tokens = bench.tensor(tokens_of(recipe), expert_input(recipe.architecture))
    if kind == "allgather":
        parts = [bench.torch.empty_like(tokens) for _ in range(ep)]
        return lambda: bench.dist.all_gather(parts, tokens, group=group)
    return _all_to_all(bench, tokens, recipe.architecture.moe_router_topk, ep, group)


def _all_to_all(bench: Bench, tokens: Any, topk: int, ep: int, group: Any) -> Callable[[], object]:
    """Returns the work of an all-to-all of every copy of the tokens, the same number to each rank."""
    rows = max(1, len(tokens) * topk // ep) * ep
    sent = bench.tensor(rows, tokens.shape[-1])
    arrived = bench.torch.empty_like(sent)
    return lambda: bench.dist.all_to_all_single(arrived, sent, group=group)


def notify(bench: Bench, row: Row) -> list[float]:
    """Returns the µs of gathering the token counts of every expert from every rank, until the host has them."""
    recipe = row.recipe(bench.recipe)
    ep = recipe.parallelism.expert_model_parallel_size
    group = bench.group(ep, 1)
    counts = bench.torch.zeros(recipe.architecture.num_moe_experts or 1, dtype=bench.torch.int64)
    counts = counts.to(bench.device.name)
    found = [bench.torch.empty_like(counts) for _ in range(ep)]

    def work() -> None:
        bench.dist.all_gather(found, counts, group=group)
        bench.torch.stack(found).sum(0).tolist()

    return bench.repeats(work, together=range(bench.world))


def copy(bench: Bench, row: Row) -> list[float]:
    size = int(row.sizes["gb"] * GB / 4)
    here = bench.torch.empty(size, dtype=bench.torch.float32, pin_memory=True)
    there = bench.tensor(size, dtype=bench.torch.float32)
    back = bool(row.sizes["back"])
    return bench.repeats(lambda: (here if back else there).copy_(there if back else here, non_blocking=True))


MEASURES = {
    **dict.fromkeys(("ring_near", "ring_both", "ring_far"), ring),
    **dict.fromkeys(("small_ring_near", "small_ring_both", "small_ring_far"), ring),
    **dict.fromkeys(("send_near", "send_far"), send),
    "dispatch": dispatch,
    "notify": notify,
    "copy": copy,
}
