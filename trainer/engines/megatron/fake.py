"""One rank of a job of any size in one process, without a GPU: fake process groups, tensors without data.

Within `fake_world(recipe, rank=0)` Megatron-Core builds and trains on fake tensors (shapes, types and lifetimes are
real, values are not) over torch's fake process group. Functions that need values behave as if all ranks were alike.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from trainer.engines.megatron import compat, delta_net
from trainer.engines.megatron.cpu import megatron_on_cpu
from trainer.engines.megatron.groups import parallel_state_of
from trainer.engines.megatron.layers import LocalModules
from trainer.model.mixers.gated_delta_net import DELTA_CHUNK
from trainer.recipe import Recipe
from trainer.recipe.layout import layout_of


def first_rank_of(recipe: Recipe, pp_rank: int) -> int:
    """Returns the first rank of a pipeline stage; in Megatron's order tp-cp-ep-dp-pp the pipeline varies slowest."""
    return pp_rank * (recipe.world_size // layout_of(recipe).pp)


@contextlib.contextmanager
def fake_process_groups(recipe: Recipe, *, rank: int) -> Iterator[None]:
    """Sets up Megatron's parallel state as `rank` sees it. Raises Megatron's own error if it refuses."""
    from megatron.core import tensor_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=recipe.world_size)
    with parallel_state_of(recipe, create_gloo_process_groups=False):
        tensor_parallel.model_parallel_cuda_manual_seed(1, force_reset_rng=True)
        yield


@contextlib.contextmanager
def fake_tensors() -> Iterator[None]:
    """Makes all tensors fake, without data, inside the with statement; use inside `megatron_on_cpu()`.

    Replaces functions of Megatron that read values.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), contextlib.ExitStack() as stack:
        for patch in _patches():
            stack.enter_context(patch)
        yield


@contextlib.contextmanager
def fake_world(recipe: Recipe, *, rank: int) -> Iterator[None]:
    """Sets up what is needed to build and train the model of one rank on fake tensors, over fake process groups."""
    with megatron_on_cpu(), fake_process_groups(recipe, rank=rank), fake_tensors():
        yield


def _patches() -> Iterator[Any]:
    """Yields patches of functions that need values or a kernel, which fake tensors do not have."""
    import megatron.core.distributed.param_and_grad_buffer as buffers
    import megatron.core.optimizer as optimizer
    import megatron.core.optimizer.distrib_optimizer as distrib_optimizer
    import megatron.core.tensor_parallel.random as mrandom
    import megatron.core.transformer.multi_latent_attention as mla
    import megatron.core.transformer.multi_token_prediction as mtp
    from megatron.core.transformer.moe.experts import SequentialMLP

    yield mock.patch.object(torch.nn.Module, "bfloat16", _to_bfloat16)
    # recomputed outputs are copied storage to storage, which the fake mode would remember for ever
    yield mock.patch.object(torch.UntypedStorage, "copy_", lambda storage, *_: storage)
    if hasattr(mrandom, "_get_share_storage"):  # from 0.17 on they share a storage, by a compiled extension
        yield mock.patch.object(mrandom, "_get_share_storage", return_value=_nothing)
    for module in (optimizer, distrib_optimizer):
        yield mock.patch.object(module, "Adam", AdamOfShapes)
    yield mock.patch.object(optimizer, "USING_PYTORCH_OPTIMIZER", False)
    yield mock.patch.object(optimizer, "is_te_min_version", return_value=True)
    yield mock.patch.object(dist, "all_gather_object", _as_if_all_were_alike)
    yield mock.patch.object(optimizer.ChainedOptimizer, "get_grad_norm", return_value=0.0)
    yield mock.patch.object(mrandom.CudaRNGStatesTracker, "fork", return_value=contextlib.nullcontext())
    yield mock.patch.object(buffers, "_coalescing_manager", _uncoalesced)
    yield mock.patch.object(SequentialMLP, "forward", _with_even_shares(SequentialMLP.forward))
    for module in delta_net.modules():
        yield mock.patch.object(module, "chunk_gated_delta_rule", _delta_rule)
    yield mock.patch.object(mtp, "roll_tensor", _with_known_count(mtp.roll_tensor))
    grouped_gemm = compat.grouped_gemm_module()
    if grouped_gemm is not None:
        yield mock.patch.object(grouped_gemm, "ops", GroupedGemmOfShapes)
    # Megatron compares the type to decide how to build the layer
    yield mock.patch.object(mla, "TELinear", DuplicatedLinear)


def _nothing(*_: Any) -> None: ...


def _to_bfloat16(module: Any) -> Any:
    """Casts the module's parameters in place: `Module.bfloat16()` swaps tensors, which fails for fake parameters with
    weak references."""
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None and parameter.dtype == torch.float32:
                converted = torch.nn.Parameter(parameter.data.bfloat16(), requires_grad=parameter.requires_grad)
                converted.__dict__.update(parameter.__dict__)
                part._parameters[name] = converted
    return module


def _as_if_all_were_alike(gathered: list[Any], value: Any, group: Any = None) -> None:
    gathered[:] = [value] * len(gathered)


@contextlib.contextmanager
def _uncoalesced(*_: Any, **__: Any) -> Iterator[Any]:
    """Replaces coalesced collectives by single ones, since the former have no fake kernel."""
    yield types.SimpleNamespace(wait=lambda: None)


def _with_even_shares(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Gives every expert the same number of tokens where experts run one after another: the real numbers are values."""

    def evenly(experts: Any, tokens: Any, _: Any, probabilities: Any) -> Any:
        number = experts.num_local_experts
        shares = types.SimpleNamespace(tolist=lambda: [tokens.size(0) // number] * number)
        return forward(experts, tokens, shares, probabilities)

    return evenly


def _with_known_count(roll: Callable[..., Any]) -> Callable[..., Any]:
    """Returns all elements as the sum of a rolled loss mask, whose value Megatron-Core 0.17 compares with 0."""

    def rolled(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        tensor, _ = roll(*args, **kwargs)
        return tensor, torch.tensor(float(tensor.numel()))

    return rolled


class AdamOfShapes(torch.optim.Optimizer):
    """Transformer Engine's FusedAdam as far as memory goes: two moments per parameter, and the master weight if
    Megatron leaves that to it (for bf16 parameters only the lower half, if remainders are stored)."""

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        weight_decay: float,
        exp_avg_dtype: Any = torch.float32,
        exp_avg_sq_dtype: Any = torch.float32,
        master_weights: bool = False,
        master_weight_dtype: Any = torch.float32,
        store_param_remainders: bool = False,
        **_: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self._kept = {"exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype}
        if master_weights:
            halved = store_param_remainders and master_weight_dtype == torch.float32
            self._kept["master_param"] = torch.int16 if halved else master_weight_dtype

    def initialize_state(self, parameter: Any, *_: Any) -> None:
        self.state[parameter] = {name: torch.empty_like(parameter, dtype=dtype) for name, dtype in self._kept.items()}

    def step(self, closure: Any = None) -> None:
        """Does nothing, since the step works in place."""


def create_state(optimizer: Any) -> None:
    """Creates the optimizer state that a first step would create, in every optimizer of a chain."""
    for chained in getattr(optimizer, "chained_optimizers", [optimizer]):
        for group in chained.optimizer.param_groups:
            for parameter in group["params"]:
                chained.optimizer.initialize_state(parameter)


class GroupedGemmOfShapes:
    """Replaces `grouped_gemm.ops`: one GEMM over all experts has the shape and the FLOPs of one per expert."""

    @staticmethod
    def gmm(tokens: Any, weights: Any, tokens_per_expert: Any, trans_b: bool = False) -> Any:
        """Returns a result of the right shape: tokens [T, K], weights [E, K, N] (or [E, N, K] with trans_b) → [T,
        N]."""
        return tokens @ (weights[0].t() if trans_b else weights[0])


class DuplicatedLinear(torch.nn.Module):
    """Replaces Transformer Engine's linear layer in parallel mode `duplicated`: every TP rank has all of it."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, tokens: Any) -> tuple[Any, None]:
        return torch.nn.functional.linear(tokens, self.weight), None


class FlashAttention(torch.nn.Module):
    """Core attention that keeps the tensors a fused kernel keeps: queries, keys, values, output and log-sum-exp."""

    def __init__(self, config: Any, *_: Any, pg_collection: Any = None, **__: Any) -> None:
        super().__init__()
        if config.softmax_type == "learnable":
            heads = config.num_attention_heads // config.tensor_model_parallel_size
            self.softmax_offset = torch.nn.Parameter(torch.empty(heads, dtype=config.params_dtype))

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        """Maps query and key [s, b, h, d], value [s, b, h, dv] to [s, b, h·dv]."""
        return _KeptByFlash.apply(query, key, value)


AS_ON_GPUS = LocalModules(core_attention=FlashAttention, down_projection=DuplicatedLinear)


class _KeptByFlash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        length, batch, heads, _ = query.shape
        output = query.new_empty(length, batch, heads * value.size(-1))
        ctx.save_for_backward(query, key, value, output, query.new_empty(batch, heads, length, dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        query, key, value, _output, _sum = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _delta_rule(query: Any, key: Any, value: Any, g: Any, beta: Any, **_: Any) -> tuple[Any, None]:
    """Applies the gated delta rule, keeping the tensors that its kernel keeps.

    Maps query and key [b, s, h, d], value [b, s, h, dv] to ([b, s, h, dv], no state).
    """
    return _KeptByDeltaRule.apply(query, key, value, g, beta), None


class _KeptByDeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, g: Any, beta: Any) -> Any:
        ctx.save_for_backward(query, key, value, g, beta, query.new_empty(*query.shape[:-1], DELTA_CHUNK))
        return torch.empty_like(value)

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        *read, _products = ctx.saved_tensors
        return tuple(torch.empty_like(tensor) for tensor in read)
