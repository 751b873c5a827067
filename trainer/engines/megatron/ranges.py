"""Names in the trace: NVTX and torch.profiler ranges around what a wall is made of, alike in both.

Megatron-Core has ranges of its own, but not where a diagnosis needs them. `instrumented()` wraps the methods in
`RANGES` for the traced steps only, so that timed steps run the unmodified code. The analyzers know the names.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

# (module under megatron.core, class or None, attribute, range)
RANGES: tuple[tuple[str, str | None, str, str], ...] = (
    ("pipeline_parallel.schedules", None, "forward_step", "forward_microbatch"),
    ("pipeline_parallel.schedules", None, "backward_step", "backward_microbatch"),
    ("pipeline_parallel.p2p_communication", "P2PCommunicator", "_communicate", "pp_send_recv"),
    ("transformer.attention", "Attention", "forward", "attention"),
    ("transformer.multi_latent_attention", "MultiLatentAttention", "forward", "attention"),
    ("transformer.moe.moe_layer", "MoELayer", "route", "router"),
    ("transformer.moe.moe_layer", "MoELayer", "preprocess", "dispatch"),
    ("transformer.moe.moe_layer", "MoELayer", "dispatch", "dispatch"),
    ("transformer.moe.moe_layer", "MoELayer", "routed_experts_compute", "experts"),
    ("transformer.moe.moe_layer", "MoELayer", "combine", "combine"),
    ("transformer.moe.moe_layer", "MoELayer", "postprocess", "combine"),
    ("transformer.moe.moe_layer", "MoELayer", "shared_experts_compute", "shared_experts"),
    ("tensor_parallel.random", "CheckpointWithoutOutput", "_recompute", "recompute"),
    ("distributed.param_and_grad_buffer", "_ParamAndGradBucketGroup", "start_grad_sync", "gradient_sync"),
    ("distributed.param_and_grad_buffer", "_ParamAndGradBucketGroup", "finish_grad_sync", "gradient_sync"),
    ("distributed.param_and_grad_buffer", "_ParamAndGradBucketGroup", "start_param_sync", "param_gather"),
    ("distributed.param_and_grad_buffer", "_ParamAndGradBucketGroup", "finish_param_sync", "param_gather"),
)  # fmt: skip

# autograd functions whose backward communicates: it gets the range its forward ran in
COMMUNICATING_FUNCTIONS = (
    "_AllToAll",
    "_GatherFromSequenceParallelRegion",
    "_ReduceScatterToSequenceParallelRegion",
)

_current = threading.local()


@contextlib.contextmanager
def span(name: str) -> Iterator[None]:
    """One range, in NVTX and in torch.profiler."""
    import nvtx
    import torch

    outer = getattr(_current, "name", None)
    _current.name = name
    nvtx.push_range(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        nvtx.pop_range()
        _current.name = outer


def ranged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with span(name):
            return function(*args, **kwargs)

    return inside


@contextlib.contextmanager
def instrumented(config: Any) -> Iterator[None]:
    """For the time of the block, everything in RANGES and the passes behind it are named in the trace."""
    with contextlib.ExitStack() as stack:
        for module_name, class_name, attribute, name in RANGES:
            owner = importlib.import_module(f"megatron.core.{module_name}")
            owner = getattr(owner, class_name) if class_name else owner
            function = getattr(owner, attribute, None)
            if function is not None:  # a later Megatron-Core may have renamed it: then it stays unnamed
                stack.enter_context(mock.patch.object(owner, attribute, ranged(name, function)))
        stack.enter_context(
            mock.patch.object(
                config, "finalize_model_grads_func", ranged("gradient_sync", config.finalize_model_grads_func)
            )
        )
        for patch in (*_recompute_patches(), *_backward_patches()):
            stack.enter_context(patch)
        stack.enter_context(_named_garbage_collection())
        yield


def _recompute_patches() -> Iterator[Any]:
    """In a checkpoint's backward, the forward that is run again is `recompute`; the backward itself is not."""
    from megatron.core.tensor_parallel.random import CheckpointFunction

    backward = CheckpointFunction.backward

    def recomputing_backward(ctx: Any, *grads: Any) -> Any:
        ctx.run_function = ranged("recompute", ctx.run_function)
        return backward(ctx, *grads)

    yield mock.patch.object(CheckpointFunction, "backward", staticmethod(recomputing_backward))


def _backward_patches() -> Iterator[Any]:
    from megatron.core.tensor_parallel import mappings

    for name in COMMUNICATING_FUNCTIONS:
        function = getattr(mappings, name)
        forward, backward = _carrying_the_range(function.forward, function.backward)
        yield mock.patch.object(function, "forward", staticmethod(forward))
        yield mock.patch.object(function, "backward", staticmethod(backward))


def _carrying_the_range(
    forward: Callable[..., Any], backward: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def remembering(ctx: Any, *args: Any) -> Any:
        ctx.range_name = getattr(_current, "name", None)
        return forward(ctx, *args)

    def named(ctx: Any, *grads: Any) -> Any:
        if ctx.range_name not in ("dispatch", "combine"):
            return backward(ctx, *grads)
        with span(ctx.range_name):
            return backward(ctx, *grads)

    return remembering, named


@contextlib.contextmanager
def _named_garbage_collection() -> Iterator[None]:
    open_ranges: list[Any] = []

    def on_gc(phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            open_ranges.append(span("gc"))
            open_ranges[-1].__enter__()
        elif open_ranges:
            open_ranges.pop().__exit__(None, None, None)

    gc.callbacks.append(on_gc)
    try:
        yield
    finally:
        gc.callbacks.remove(on_gc)
        while open_ranges:
            open_ranges.pop().__exit__(None, None, None)
