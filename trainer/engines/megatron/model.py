"""Builds a recipe's model for training: GPTModel chunks under Megatron's DDP, and the optimizer."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.engines.megatron.config import MegatronConfigs
from trainer.engines.megatron.delta_net import delta_net_block
from trainer.engines.megatron.fusions import accumulating_without_apex
from trainer.engines.megatron.layers import TRAINABLE, LocalModules, local_layers, normed_query_projections
from trainer.model.parameters import vocabulary
from trainer.recipe import Recipe
from trainer.recipe.architecture import Architecture
from trainer.recipe.layout import layout_of


@dataclass(frozen=True, kw_only=True)
class TrainableModel:
    """A model ready to train. `chunks` has one DDP-wrapped GPTModel per virtual pipeline stage of this rank."""

    chunks: list[Any]
    optimizer: Any
    config: Any

    def release(self) -> None:
        """Drops every autograd result that outlives a step.

        Its C++ nodes keep DDP's hooks, and those keep the model: a cycle that Python's collector cannot see. Token
        dispatchers keep routing probabilities; the shards of a distributed optimizer are views of fp32 parameters.
        Without this every burst leaves its model and process groups behind (230 MiB and 48 threads per burst were seen,
        and steps that get slower).
        """
        for chunk in self.chunks:
            for module in chunk.modules():
                if dispatcher := getattr(module, "token_dispatcher", None):
                    _drop_graph(dispatcher)
        for optimizer in getattr(self.optimizer, "chained_optimizers", [self.optimizer]):
            _drop_parameters(optimizer)


def _drop_parameters(optimizer: Any) -> None:
    """Removes the parameters of one of Megatron's optimizers, and of its torch optimizer, which a rank without
    parameters lacks."""
    for shards in getattr(optimizer, "shard_fp32_groups", []):
        shards.clear()
    if inner := getattr(optimizer, "optimizer", None):
        for group in inner.param_groups:
            group["params"].clear()
        inner.state.clear()


def _drop_graph(holder: Any) -> None:
    """Deletes every attribute of `holder` that is an autograd result."""
    for name, value in vars(holder).items():
        if getattr(value, "grad_fn", None) is not None:
            setattr(holder, name, None)


def build_model(recipe: Recipe, configs: MegatronConfigs, *, transformer_engine: bool) -> TrainableModel:
    """Builds the model and the optimizer of this rank. Requires an initialised parallel state."""
    from megatron.core.optimizer import get_megatron_optimizer

    with accumulating_without_apex(configs.transformer) as built:
        built += build_chunks(recipe, configs.transformer, local=None if transformer_engine else TRAINABLE)
    chunks = in_ddp(configs, built)
    if not configs.ddp.use_megatron_fsdp:
        for chunk in chunks:
            chunk.broadcast_params()
    return trainable(configs, chunks, get_megatron_optimizer(configs.optimizer, chunks))


def in_ddp(configs: MegatronConfigs, bare: list[Any]) -> list[Any]:
    """Returns each chunk wrapped in Megatron's DDP or FSDP, with its gradient buffers.

    Runs on a side stream, as in training.py:1326, since graphs cannot be captured over hooks of the default stream.
    """
    import torch

    wrapper = _megatron_fsdp() if configs.ddp.use_megatron_fsdp else _megatron_ddp()
    one_bucket = configs.optimizer.overlap_param_gather_with_optimizer_step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        chunks = [
            wrapper(configs.transformer, configs.ddp, chunk, disable_bucketing=index > 0 or one_bucket)
            for index, chunk in enumerate(bare)
        ]
    torch.cuda.current_stream().wait_stream(side)
    return chunks


def _megatron_ddp() -> Any:
    from megatron.core.distributed import DistributedDataParallel

    return DistributedDataParallel


def _megatron_fsdp() -> Any:
    """Returns the class of Megatron-FSDP.

    Raises ImportError if a package that it needs is missing. Not run on a GPU.
    """
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

    return FullyShardedDataParallel


def trainable(configs: MegatronConfigs, chunks: list[Any], optimizer: Any) -> TrainableModel:
    """Combines the parts and sets the functions that Megatron's schedules call in the config."""
    from megatron.core.distributed import finalize_model_grads

    config = configs.transformer
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if configs.ddp.overlap_grad_reduce:
        config.no_sync_func = _one_or_list([chunk.no_sync for chunk in chunks])
        if len(chunks) > 1 and configs.ddp.align_param_gather:
            config.grad_sync_func = _one_or_list([chunk.start_grad_sync for chunk in chunks])
    if configs.ddp.overlap_param_gather and configs.ddp.align_param_gather:
        config.param_sync_func = _one_or_list([chunk.start_param_sync for chunk in chunks])
    return TrainableModel(chunks=chunks, optimizer=optimizer, config=config)


def _one_or_list(values: list[Any]) -> Any:
    """Returns a single function for one chunk, a list for several, as Megatron's schedules expect."""
    return values if len(values) > 1 else values[0]


def build_chunks(recipe: Recipe, config: Any, *, local: LocalModules | None) -> list[Any]:
    """Returns one GPTModel per virtual pipeline stage of this rank, with Transformer Engine's layers if `local` is
    None."""
    stages = layout_of(recipe).vpp
    spec = functools.partial(_layer_specs, config, local)
    with normed_query_projections() if local else contextlib.nullcontext():
        return [_gpt_chunk(recipe, config, stage if stages > 1 else None, spec) for stage in range(stages)]


def _layer_specs(config: Any, local: LocalModules | None, vp_stage: int | None) -> tuple[Any, Any]:
    """Returns the layer specs of the decoder, and of multi-token prediction where this stage has it."""
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_decoder_layer_specs,
        get_gpt_mtp_block_spec,
    )

    kind = {"use_transformer_engine": local is None, "vp_stage": vp_stage}
    if config.experimental_attention_variant:
        decoder = delta_net_block(config, vp_stage, transformer_engine=local is None)
    else:
        decoder = get_gpt_decoder_block_spec(config, **kind)
    mtp = None
    if config.mtp_num_layers:  # a stage with only MTP has no decoder layer to copy: the model's last one is used
        alike = decoder if decoder.layer_specs else get_gpt_decoder_layer_specs(config, local is None)[-1]
        mtp = get_gpt_mtp_block_spec(config, alike, **kind)
    if local is None:
        return decoder, mtp
    compresses = getattr(config, "q_lora_rank", None) is not None
    return tuple(local_layers(spec, local, compresses_queries=compresses) for spec in (decoder, mtp))


def _positions(model: Architecture) -> dict[str, Any]:
    """Returns the arguments of GPTModel about positions, which are not in the configuration."""
    return {
        "position_embedding_type": model.position_embedding_type,
        "rotary_base": model.rotary_base,
        "rotary_percent": model.rotary_percent,
        "rope_scaling": model.use_rope_scaling,
        "rope_scaling_factor": model.rope_scaling_factor,
    }


def _gpt_chunk(recipe: Recipe, config: Any, vp_stage: int | None, layer_specs: Callable[[Any], Any]) -> Any:
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module

    spec, mtp = layer_specs(vp_stage)
    at = {"ignore_virtual": False, "vp_stage": vp_stage} if vp_stage is not None else {}
    model = GPTModel(
        config,
        spec,
        int(vocabulary(recipe.architecture, config.tensor_model_parallel_size)),
        recipe.training.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(**at),
        post_process=parallel_state.is_pipeline_last_stage(**at),
        mtp_block_spec=mtp,
        share_embeddings_and_output_weights=not recipe.architecture.untie_embeddings_and_output_weights,
        **_positions(recipe.architecture),
        vp_stage=vp_stage,
    )
    if torch.cuda.is_available():
        model.cuda(torch.cuda.current_device())
    return Float16Module(config, model) if config.bf16 else model
