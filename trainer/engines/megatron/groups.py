"""Sets up Megatron's parallel state for a recipe, over an existing process group: a burst's own or a dry run's fake
one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from trainer.engines.megatron.forget import forget_the_burst
from trainer.recipe import Recipe
from trainer.recipe.layout import layout_of


@contextlib.contextmanager
def parallel_state_of(recipe: Recipe, *, ends_with_process_group: bool = True, **more: Any) -> Iterator[None]:
    """Sets up the groups of every parallel size for the block. `more` is passed to Megatron, whose own errors are
    raised.

    At the end no global state of Megatron's and no process group is left; the world's stays if
    `ends_with_process_group` is false.
    """
    from megatron.core import parallel_state, tensor_parallel

    sizes, chunks = recipe.parallelism, layout_of(recipe).vpp  # a layout text may ask for chunks without the knob
    try:
        parallel_state.initialize_model_parallel(
            sizes.tensor_model_parallel_size,
            sizes.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
            context_parallel_size=sizes.context_parallel_size,
            hierarchical_context_parallel_sizes=list(recipe.knob("hierarchical_context_parallel_sizes") or ()) or None,
            expert_model_parallel_size=sizes.expert_model_parallel_size,
            expert_tensor_parallel_size=recipe.expert_tensor_parallel_size,
            num_distributed_optimizer_instances=recipe.knob("num_distributed_optimizer_instances"),
            **more,
        )
        yield
    finally:
        tensor_parallel.get_cuda_rng_tracker().reset()
        forget_the_burst()
        if ends_with_process_group:
            dist.destroy_process_group()
