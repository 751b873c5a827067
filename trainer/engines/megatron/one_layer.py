"""Builds one layer of a recipe with Megatron-Core as in a burst, alone on each rank, to measure its passes and tensors.

It has the experts that one rank of the recipe holds, and exchanges no tokens with other ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainer.engines.megatron.config import build_configs
from trainer.engines.megatron.device import Device
from trainer.engines.megatron.extensions import build_extensions
from trainer.engines.megatron.groups import parallel_state_of
from trainer.engines.megatron.layers import TRAINABLE
from trainer.engines.megatron.model import build_chunks
from trainer.engines.megatron.needs import with_local_layers
from trainer.engines.megatron.train import on_device, uses_transformer_engine
from trainer.recipe import Recipe
from trainer.recipe.architecture import Architecture

VOCABULARY = 128  # small, because embedding and head are not measured


@dataclass(frozen=True, kw_only=True)
class OneLayer:
    """One layer, ready to measure.

    `model` is a GPTModel of one layer with a small embedding and head; `recipe` is that model's.
    """

    model: Any
    recipe: Recipe
    device: str

    def forward(self, tokens: int | None = None) -> Any:
        """Returns the loss of a micro batch of the recipe's sequences, or of sequences of `tokens` tokens."""
        length = tokens or self.recipe.training.seq_length
        shape = (self.recipe.training.micro_batch_size, length)
        ids = torch.randint(0, VOCABULARY, shape, device=self.device)
        positions = torch.arange(length, device=self.device).expand(shape)
        return self.model(ids, positions, None, labels=ids).float().mean()

    def step(self, tokens: int | None = None) -> None:
        """Runs forward and backward, and drops the gradients."""
        self.forward(tokens).backward()
        self.model.zero_grad(set_to_none=True)

    def kept_bytes(self) -> int:
        """Returns the bytes of activations that the layer keeps for backward, each storage counted once."""
        layers = getattr(self.model, "module", self.model).decoder  # Float16Module wraps a model in 16 bits
        parameters = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        seen: dict[int, int] = {}

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in parameters:
                seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        plain = layers.forward

        def counted(*args: Any, **kwargs: Any) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                return plain(*args, **kwargs)

        layers.forward = counted
        try:
            loss = self.forward()
        finally:
            layers.forward = plain
        loss.backward()
        self.model.zero_grad(set_to_none=True)
        return sum(seen.values())


@contextlib.contextmanager
def one_layer(recipe: Recipe, device: Device, *, moe: bool) -> Iterator[OneLayer]:
    """Builds the layer, with experts or without, for the duration of the with statement; nothing of it is left after.

    All ranks must call it with the same arguments.
    """
    own = one_layer_recipe(recipe, moe=moe, world=dist.get_world_size())
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_device(device))
        stack.enter_context(parallel_state_of(own, ends_with_process_group=False))
        from megatron.core import tensor_parallel

        tensor_parallel.model_parallel_cuda_manual_seed(1, force_reset_rng=True)
        transformer_engine = uses_transformer_engine(own)
        own = own if transformer_engine else with_local_layers(own)
        configs = build_configs(own, transformer_engine=transformer_engine)
        configs.transformer.gradient_accumulation_fusion = False  # it adds to the gradients of DDP, which is not here
        (model,) = build_chunks(own, configs.transformer, local=None if transformer_engine else TRAINABLE)
        build_extensions(own)
        yield OneLayer(model=model, recipe=own, device=device.name)
        del model


def one_layer_recipe(recipe: Recipe, *, moe: bool, world: int) -> Recipe:
    """Returns a recipe of one layer with the experts that a rank of this recipe holds, for `world` ranks."""
    model = recipe.architecture
    held = max(1, (model.num_moe_experts or 1) // recipe.parallelism.expert_model_parallel_size)
    at = next((at for at, has in enumerate(model.moe_layers) if has == moe), 0)
    fields = {name: _of_layer(value, at, model.num_layers) for name, value in model.model_dump().items()}
    fields |= {"num_layers": 1, "vocab_size": VOCABULARY, "mtp_num_layers": None, "moe_layer_freq": 1}
    fields |= {"moe_router_num_groups": None, "moe_router_group_topk": None}
    if moe:
        fields |= {"num_moe_experts": held, "moe_router_topk": min(model.moe_router_topk, held)}
    else:
        fields |= {"num_moe_experts": None, "moe_shared_expert_intermediate_size": None}
    cluster = recipe.cluster.model_copy(update={"nodes": 1, "gpus_per_node": world})
    own = recipe.model_copy(update={"model": Architecture.model_validate(fields), "cluster": cluster})
    return own.replace({"expert_model_parallel_size": 1, "expert_tensor_parallel_size": 1})


def _of_layer(value: Any, at: int, layers: int) -> Any:
    """Returns the entry of one layer in a list by layer; anything else unchanged."""
    return (value[at],) if isinstance(value, (list, tuple)) and len(value) == layers else value
