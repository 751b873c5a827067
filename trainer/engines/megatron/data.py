"""Seeded mock data: token sequences a model can learn, the same for the same seed, step and microbatch.

A sample depends on its index in the global batch alone, so every layout and micro batch size trains on the
same samples and loss curves can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from trainer.engines.megatron.layers import zigzag_positions
from trainer.recipe import Recipe

Batch = tuple[Any, Any, Any]  # tokens, labels, positions: int64[micro batch, sequence share of this rank]


def batches(recipe: Recipe, *, seed: int, device: Any) -> Iterator[Batch]:
    """Micro batches of this data-parallel rank, for ever."""
    from megatron.core import parallel_state

    dp_rank = parallel_state.get_data_parallel_rank()
    cp_rank = parallel_state.get_context_parallel_rank()
    cp, size = recipe.parallelism.context_parallel_size, recipe.training.micro_batch_size
    length = recipe.training.seq_length
    positions = torch.arange(length)
    share = zigzag_positions(cp_rank, length // cp, cp) if cp > 1 else positions
    per_rank = recipe.num_microbatches * size
    step = 0
    while True:
        first = step * recipe.training.global_batch_size + dp_rank * per_rank
        for start in range(first, first + per_rank, size):
            samples = torch.stack([_sample(recipe, seed, start + i) for i in range(size)])
            tokens, labels = samples[:, :-1][:, share], samples[:, 1:][:, share]
            yield tokens.to(device), labels.to(device), share.repeat(size, 1).to(device)
        step += 1


def _sample(recipe: Recipe, seed: int, index: int) -> Any:
    """int64[seq + 1]: a walk of steps 0, 1, 2 through the vocabulary, which a model learns within a burst."""
    generator = torch.Generator(device="cpu").manual_seed(seed * 1_000_003 + index)
    steps = torch.randint(0, 3, (recipe.training.seq_length + 1,), generator=generator)
    return torch.cumsum(steps, 0) % recipe.architecture.vocab_size
