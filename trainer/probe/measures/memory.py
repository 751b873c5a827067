"""Measures the memory of one layer, and the GPU memory that the allocator does not see or cannot use."""

from __future__ import annotations

from collections.abc import Callable

from trainer.microbenchmarks.row import Row
from trainer.probe.bench import Bench, UnavailableError

GIB = 2**30
STEPS = 2  # steps of a layer before fragmentation is read


def layer_kept(bench: Bench, row: Row) -> list[float]:
    from trainer.engines.megatron.one_layer import one_layer

    with one_layer(row.recipe(bench.recipe), bench.device, moe=bool(row.sizes["moe"])) as found:
        return [found.kept_bytes() / GIB]


def layer_peak(bench: Bench, row: Row) -> list[float]:
    """Returns the peak memory of a layer's forward and backward, GiB, above weights and their gradients, which stay
    allocated between passes."""
    from trainer.engines.megatron.one_layer import one_layer

    with one_layer(row.recipe(bench.recipe), bench.device, moe=bool(row.sizes["moe"])) as found:
        found.forward().backward()
        with bench.device.held(None):
            before = bench.device.peak_gib()
            found.forward().backward()
            bench.device.synchronize()
            return [bench.device.peak_gib() - before]


def outside(bench: Bench, row: Row) -> list[float]:
    found = bench.device.outside_gib()
    if found is None:
        raise UnavailableError("the device does not report its memory")
    return [found]


def fragmentation(bench: Bench, row: Row) -> list[float]:
    """Returns the share of reserved memory that was never allocated, after steps of one layer of the recipe."""
    from trainer.engines.megatron.one_layer import one_layer

    cuda = bench.torch.cuda
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    moe = bench.recipe.architecture.num_moe_experts is not None
    with one_layer(bench.recipe, bench.device, moe=moe) as found:
        for _ in range(STEPS):
            found.step()
    return [max(0.0, 1 - cuda.max_memory_allocated() / max(cuda.max_memory_reserved(), 1))]


def second_step(bench: Bench, row: Row) -> list[float]:
    """Returns the growth of a layer's peak from the first step to the second, GiB, less the optimizer's state, which is
    allocated between them."""
    from trainer.engines.megatron.one_layer import one_layer

    moe = bench.recipe.architecture.num_moe_experts is not None
    bench.torch.cuda.empty_cache()
    with one_layer(bench.recipe, bench.device, moe=moe) as found:
        # fused like Megatron's: no temporary tensors
        optimizer = bench.torch.optim.Adam(found.model.parameters(), fused=True)
        first = _peak_gib(bench, lambda: found.forward().backward())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        def second() -> None:
            found.forward().backward()
            optimizer.step()

        growth = _peak_gib(bench, second) - first
        state = sum(each.nbytes for made in optimizer.state.values() for each in made.values())
    return [max(0.0, growth - state / GIB)]


def _peak_gib(bench: Bench, work: Callable[[], object]) -> float:
    bench.torch.cuda.reset_peak_memory_stats()
    work()
    bench.device.synchronize()
    return float(bench.torch.cuda.max_memory_reserved()) / GIB


MEASURES = {
    "layer_kept": layer_kept,
    "layer_peak": layer_peak,
    "outside": outside,
    "fragmentation": fragmentation,
    "second_step": second_step,
}
