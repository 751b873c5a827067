"""Mock data from a seed: token sequences that a model can learn.

A sample depends only on the seed and on its index among all samples of the burst: every layout and micro batch size
trains on the same samples, so that loss curves can be compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from trainer.engines.megatron.layers import zigzag_positions
from trainer.recipe import Recipe

# tokens, labels, positions: int64[micro batch, sequence share of this rank]; a dictionary, as graphs of the whole
# iteration want it (full_cuda_graph.py:110)
Batch = dict[str, Any]


class Feed:
    """An endless supply of micro batches on the device.

    On a GPU they are drawn before the step, as a data loader's workers would do during it, into pinned memory, and
    copied asynchronously, since a blocking copy would be a synchronisation. On a CPU each is drawn when it is needed.
    """

    def __init__(self, drawn: Iterator[Batch], device: str) -> None:
        self._drawn, self._device = drawn, device
        self._ready: deque[Batch] = deque()

    def draw(self, count: int) -> None:
        """Draws the next `count` micro batches ahead; does nothing on a CPU."""
        if self._device != "cpu":
            self._ready.extend(
                {name: tensor.pin_memory() for name, tensor in batch.items()} for batch in islice(self._drawn, count)
            )

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Batch:
        batch = self._ready.popleft() if self._ready else next(self._drawn)
        if self._device == "cpu":
            return batch
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.items()}


def batches(recipe: Recipe, *, seed: int) -> Iterator[Batch]:
    """Yields the micro batches of this data-parallel rank in host memory, without end."""
    from megatron.core import parallel_state

    dp_rank = parallel_state.get_data_parallel_rank()
    cp_rank = parallel_state.get_context_parallel_rank()
    cp, size = recipe.parallelism.context_parallel_size, recipe.training.micro_batch_size
    length = recipe.training.seq_length
    share = zigzag_positions(cp_rank, length // cp, cp) if cp > 1 else torch.arange(length)
    per_rank = recipe.num_microbatches * size
    step = 0
    while True:
        first = step * recipe.training.global_batch_size + dp_rank * per_rank
        for start in range(first, first + per_rank, size):
            samples = torch.stack([_sample(recipe, seed, start + i) for i in range(size)])
            yield {
                "tokens": samples[:, :-1][:, share],
                "labels": samples[:, 1:][:, share],
                "positions": share.repeat(size, 1),
            }
        step += 1


def _sample(recipe: Recipe, seed: int, index: int) -> Any:
    """Returns int64[seq + 1]: a random walk through the vocabulary with steps 0, 1, 2, which a model learns within a
    burst."""
    generator = torch.Generator(device="cpu").manual_seed(seed * 1_000_003 + index)
    steps = torch.randint(0, 3, (recipe.training.seq_length + 1,), generator=generator)
    return torch.cumsum(steps, 0) % recipe.architecture.vocab_size
