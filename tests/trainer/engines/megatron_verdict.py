"""Asks the installed Megatron-Core itself about a recipe, without a GPU, a model or Transformer Engine.

Four things of its own are run: the three configurations of a recipe (`TransformerConfig` and its MLA twin, DDP,
optimizer), `initialize_model_parallel` on a process group of fake ranks, the layers of every stage, and the counter of
micro batches. Transformer Engine is replaced by fakes, as if a recent one were installed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

from trainer.recipe import Recipe
from trainer.recipe.layout import layout_of

FUSED = (
    "fused_permute",
    "fused_permute_with_probs",
    "fused_sort_chunks_by_index",
    "fused_sort_chunks_by_index_with_probs",
    "fused_unpermute",
)
REFUSALS = (AssertionError, ValueError, RuntimeError, KeyError, NotImplementedError, ZeroDivisionError)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """`place` is the file and line that raised, `what` its message."""

    place: str
    what: str


@contextlib.contextmanager
def transformer_engine_played() -> Iterator[None]:
    """Patches version gates to yes, fused kernels to present, and FusedAdam to accept what the optimizer asks for."""
    import torch.distributed
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.optimizer import optimizer_config
    from megatron.core.transformer import transformer_config
    from megatron.core.transformer.moe import moe_utils

    class FusedAdam:
        def __init__(
            self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any
        ) -> None:
            raise NotImplementedError

    optimizers: Any = ModuleType("transformer_engine.pytorch.optimizers")
    optimizers.FusedAdam = FusedAdam
    names = ("transformer_engine", "transformer_engine.pytorch")
    modules = {name: ModuleType(name) for name in names} | {optimizers.__name__: optimizers}
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(mock.patch.dict(sys.modules, modules))
        for module in (optimizer_config, transformer_config):
            stack.enter_context(mock.patch.object(module, "is_te_min_version", return_value=True))
        for name in FUSED:
            stack.enter_context(mock.patch.object(moe_utils, name, object(), create=True))
        stack.enter_context(mock.patch.object(rope_utils, "fused_apply_rotary_pos_emb", object()))
        # Groups inside those of several optimizer instances want einops; nothing is checked there.
        inner = mock.patch.object(parallel_state, "create_hierarchical_groups", return_value=([None] * 2, [None] * 2))
        stack.enter_context(inner)
        try:
            yield
        finally:
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()


def refusal(recipe: Recipe) -> Refusal | None:
    """Returns why Megatron-Core refuses the recipe; None if it does not. Called inside `transformer_engine_played`."""
    now = layout_of(recipe)
    sizes = (now.world, now.tp, now.pp, now.vpp, now.cp, now.ep, now.etp)
    try:
        with mock.patch.dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=recipe.knob("PYTORCH_CUDA_ALLOC_CONF") or ""):
            config = _configured(recipe)
        _counted(recipe)
        _staged(recipe, config)
    except REFUSALS as error:
        return _said(error)
    return _grouped(*sizes, recipe.knob("num_distributed_optimizer_instances"))


def _said(error: BaseException) -> Refusal:
    return Refusal(place=_place(error), what=str(error).split("\n")[0])


def _configured(recipe: Recipe) -> Any:
    from trainer.engines.megatron.config import build_configs

    return build_configs(recipe, transformer_engine=True).transformer


@functools.cache
def _grouped(world: int, tp: int, pp: int, vpp: int, cp: int, ep: int, etp: int, instances: int) -> Refusal | None:
    """Returns why Megatron-Core cannot group the ranks of a layout, or None; cached, since many recipes share one."""
    import torch.distributed
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() != world:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        torch.distributed.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            tp,
            pp,
            vpp if vpp > 1 else None,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
            num_distributed_optimizer_instances=instances,
            create_gloo_process_groups=False,
        )
    except REFUSALS as error:
        return _said(error)
    finally:
        parallel_state.destroy_model_parallel()
    return None


def _counted(recipe: Recipe) -> None:
    from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator

    training = recipe.training
    ConstantNumMicroBatchesCalculator(
        training.global_batch_size, training.micro_batch_size, recipe.data_parallel_size, False, 0
    )


def _staged(recipe: Recipe, config: Any) -> None:
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    if config.pipeline_model_parallel_layout is None:
        for rank in range(recipe.parallelism.pipeline_model_parallel_size):
            get_num_layers_to_build(config, vp_stage=0, pp_rank=rank)


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    place = ""
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if "megatron" in path:
            place = f"{path.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
