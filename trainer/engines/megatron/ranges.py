"""Names parts of a step in traces: opens the same ranges in NVTX and in torch.profiler.

Megatron-Core has ranges of its own, but not where a diagnosis needs them. In our own worker `instrumented()` wraps the
methods in `RANGES` for the traced steps only, so that timed steps run the unmodified code. In a user's trainer
`name_ranges()` wraps them once, and they act while a profiler records. The analyzers know the names.

Loaded by its path into the user's trainer, where this package is not installed: imports nothing of this project.
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

# A whole step and its optimizer, which our own worker names itself: (module, class or None, attribute, range)
TRAINER_RANGES: tuple[tuple[str, str | None, str, str], ...] = (
    ("megatron.training.training", None, "train_step", "step"),
    ("megatron.bridge.training.train", None, "train_step", "step"),
    ("megatron.core.optimizer.optimizer", "ChainedOptimizer", "step", "optimizer"),
    ("megatron.core.optimizer.optimizer", "MixedPrecisionOptimizer", "step", "optimizer"),
    ("megatron.core.optimizer.optimizer", "FP32Optimizer", "step", "optimizer"),
    ("megatron.core.distributed.finalize_model_grads", None, "finalize_model_grads", "gradient_sync"),
)

# autograd functions whose backward communicates: it is recorded as `dispatch` or `combine` if its forward ran in it
COMMUNICATING_FUNCTIONS = (
    "_AllToAll",
    "_GatherFromSequenceParallelRegion",
    "_ReduceScatterToSequenceParallelRegion",
)

RANDOM, MAPPINGS = "megatron.core.tensor_parallel.random", "megatron.core.tensor_parallel.mappings"
MODULES = {RANDOM, MAPPINGS, *(f"megatron.core.{m}" for m, *_ in RANGES), *(m for m, *_ in TRAINER_RANGES)}

_current = threading.local()


@contextlib.contextmanager
def span(name: str) -> Iterator[None]:
    """Opens one range, in NVTX and in torch.profiler."""
    import torch

    push, pop = _nvtx()
    outer = getattr(_current, "name", None)
    _current.name = name
    push(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        pop()
        _current.name = outer


@functools.cache
def _nvtx() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """Returns push and pop of NVTX ranges, which do nothing if both the package nvtx and a GPU are missing: a user's
    trainer may lack the package, and torch's own functions need a GPU."""
    try:
        import nvtx
    except ImportError:
        import torch

        on_gpu = torch.cuda.is_available() and torch.version.cuda is not None
        return (torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop) if on_gpu else (lambda name: None, lambda: None)
    return nvtx.push_range, nvtx.pop_range


def always() -> bool:
    return True


def ranged(name: str, function: Callable[..., Any], when: Callable[[], bool] = always) -> Callable[..., Any]:
    """Returns the function wrapped in a range, which opens only if `when` holds."""

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        if not when():
            return function(*args, **kwargs)
        with span(name):
            return function(*args, **kwargs)

    return inside


def name_ranges(module: Any, when: Callable[[], bool]) -> None:
    """Wraps the functions of RANGES and TRAINER_RANGES, recompute and COMMUNICATING_FUNCTIONS in a module that was just
    imported, permanently."""
    ours = [(f"megatron.core.{path}", owner, attribute, name) for path, owner, attribute, name in RANGES]
    for module_name, class_name, attribute, name in (*ours, *TRAINER_RANGES):
        owner = getattr(module, class_name, None) if class_name else module
        if module_name == module.__name__ and owner is not None and callable(function := vars(owner).get(attribute)):
            setattr(owner, attribute, ranged(name, function, when))
    if module.__name__ == RANDOM:
        module.CheckpointFunction.backward = staticmethod(_recomputing(module.CheckpointFunction.backward, when))
    if module.__name__ == MAPPINGS:
        for name in COMMUNICATING_FUNCTIONS:
            function = getattr(module, name)
            forward, backward = _carrying_the_range(function.forward, function.backward)
            function.forward, function.backward = staticmethod(forward), staticmethod(backward)


@contextlib.contextmanager
def instrumented(config: Any) -> Iterator[None]:
    """Names the functions of RANGES, gradient finalization, recompute, communication in backward, and garbage
    collection in the trace within the block."""
    with contextlib.ExitStack() as stack:
        for module_name, class_name, attribute, name in RANGES:
            owner = importlib.import_module(f"megatron.core.{module_name}")
            owner = getattr(owner, class_name) if class_name else owner
            function = getattr(owner, attribute, None)
            if function is not None:  # None if a later Megatron-Core has renamed the function: no range then
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
    """Yields patches that name the repeated forward in a checkpoint's backward `recompute`, without the backward
    itself."""
    from megatron.core.tensor_parallel.random import CheckpointFunction

    recomputing = _recomputing(CheckpointFunction.backward, always)
    yield mock.patch.object(CheckpointFunction, "backward", staticmethod(recomputing))


def _recomputing(backward: Callable[..., Any], when: Callable[[], bool]) -> Callable[..., Any]:
    def recomputing_backward(ctx: Any, *grads: Any) -> Any:
        ctx.run_function = ranged("recompute", ctx.run_function, when)
        return backward(ctx, *grads)

    return recomputing_backward


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
