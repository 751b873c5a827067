"""Runs unmodified Megatron-Core on CPU tensors; lists everything that is substituted during a burst, and why.

`with megatron_on_cpu():` wraps building and training. The installed package is not edited, and each substitution is
undone on exit. Within the block (tests/trainer/engines/test_megatron_cpu.py), calls of `torch.cuda` by Megatron succeed
and act on the CPU, tensors on "cuda" are CPU tensors, and forks of the RNG act on the single CPU generator.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from trainer.engines.megatron import compat, delta_net, without_te

CPU = torch.device("cpu")


class _Queue:
    """Replaces torch.cuda.Stream and Event. A CPU runs everything in order, so there is nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def _nothing(self, *_: Any, **__: Any) -> None: ...

    wait_stream = wait_event = record = wait = synchronize = _nothing

    def record_event(self, *_: Any) -> _Queue:
        return self

    def query(self) -> bool:
        return True


_QUEUE = _Queue()


def _not_compiled(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
    return function or _not_compiled


def import_uncompiled() -> None:
    """Imports Megatron-Core with its jit_fuser off, unless it is imported already.

    torch.compile imports Inductor where it decorates, also if TORCHDYNAMO_DISABLE keeps it from compiling: that takes
    1.4 s of CPU time, a third of a rank's start.
    """
    with mock.patch.object(torch, "compile", _not_compiled):
        importlib.import_module("megatron.core")


def _is_cuda(device: Any) -> bool:
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, torch.device) and device.type == "cuda"


class _CudaLiteralsMeanCpu(TorchFunctionMode):
    """Makes `device="cuda"` mean the CPU, `Tensor.cuda()` return the tensor itself, and `Tensor.type()` return CUDA
    names. The mixed-precision optimizers compare with those names and raise TypeError for others."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.record_stream:
            return None
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if func is torch.Tensor.to:
            args = tuple(CPU if _is_cuda(arg) else arg for arg in args)
        return func(*args, **kwargs)


class _GroupedGemmOnCpu:
    """Replaces `grouped_gemm.ops` as Megatron's GroupedMLP calls it: one GEMM per expert."""

    @staticmethod
    def gmm(tokens: Any, weights: Any, tokens_per_expert: Any, trans_b: bool = False) -> Any:
        """Multiplies by group: tokens [T, K], weights [E, K, N] (or [E, N, K] with trans_b), tokens_per_expert [E] →
        [T, N]."""
        if trans_b:
            weights = weights.transpose(1, 2)
        parts = tokens.split(tokens_per_expert.tolist())
        return torch.cat([part @ weight for part, weight in zip(parts, weights, strict=True)])


def _no_context(*_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _cuda_calls() -> dict[str, Any]:
    """Returns the replacements in `torch.cuda`, by name. The RNG of the device is the CPU's single generator."""
    return {
        "current_device": lambda: CPU,
        "set_device": lambda *_: None,
        "synchronize": lambda *_, **__: None,
        "empty_cache": lambda: None,
        "Stream": _Queue,
        "Event": _Queue,
        "current_stream": lambda *_: _QUEUE,
        "default_stream": lambda *_: _QUEUE,
        "stream": _no_context,
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
    }


def _split_sizes(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Returns split sizes as numpy for all-to-all, as `maybe_move_tensor_to_cpu` does only for CUDA tensors."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def _sends_keep_their_data(p2p_ops: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `_p2p_ops`, which starts sends that are waited for later (`overlap_p2p_comm`).

    The interleaved schedule frees an output's `.data` (`deallocate_output_tensor`) while it is still being sent. On a
    GPU the allocator keeps such memory until NCCL has read it. gloo only holds the tensor, whose data has then changed:
    it would send whatever was written to the memory since. So it gets a tensor of its own over the same memory.
    """

    def with_tensors_of_their_own(**kwargs: Any) -> Any:
        for name in ("tensor_send_prev", "tensor_send_next"):
            if kwargs[name] is not None:
                kwargs[name] = kwargs[name].detach()
        return p2p_ops(**kwargs)

    return with_tensors_of_their_own


def _patches() -> Iterator[Any]:
    """Yields every replaced attribute as a patch of unittest.mock that has not started."""
    import megatron.core.pipeline_parallel.p2p_communication as p2p
    import megatron.core.tensor_parallel.random as mrandom
    import megatron.core.transformer.moe.token_dispatcher as dispatcher

    cuda = _cuda_calls()
    for name, value in cuda.items():
        yield mock.patch.object(torch.cuda, name, value)
    yield mock.patch.object(torch.cuda.random, "get_rng_state", cuda["get_rng_state"])
    yield mock.patch.object(mrandom, "_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state))
    yield mock.patch.object(dispatcher, "maybe_move_tensor_to_cpu", _split_sizes)
    yield mock.patch.object(p2p, "_p2p_ops", _sends_keep_their_data(p2p._p2p_ops))
    grouped_gemm = compat.grouped_gemm_module()
    if grouped_gemm is not None and grouped_gemm.grouped_gemm is None:
        yield mock.patch.object(grouped_gemm, "grouped_gemm", True)
        yield mock.patch.object(grouped_gemm, "ops", _GroupedGemmOnCpu)
    yield from without_te.patches()
    yield from delta_net.patches()


def _not_about_one_generator(record: logging.LogRecord) -> bool:
    return "CPU RNG state changed" not in record.getMessage()


@contextlib.contextmanager
def megatron_on_cpu() -> Iterator[None]:
    """Makes Megatron-Core's CUDA calls mean the CPU within the block."""
    import_uncompiled()
    import megatron.core.tensor_parallel.random as mrandom

    with contextlib.ExitStack() as stack:
        for patch in _patches():
            stack.enter_context(patch)
        # Megatron warns if a fork of the device's generator changes the CPU's: here both are the same
        log = logging.getLogger(mrandom.__name__)
        log.addFilter(_not_about_one_generator)
        stack.callback(log.removeFilter, _not_about_one_generator)
        stack.enter_context(_CudaLiteralsMeanCpu())
        yield
