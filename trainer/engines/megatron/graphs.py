"""CUDA graphs as Megatron-LM's training loop drives them: who captures, when, and which steps come before.

Graphs of layers of impl `local` are captured by the schedule itself at the end of the first step; Transformer Engine's
by a helper between two steps; one of the whole iteration by a wrapper around the schedule. Source: Megatron-LM 0.16.1,
training.py:2608, :2673, :2738-2750, :2830. Not run on a GPU: tests hold it against fakes of Megatron's classes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from trainer.engines.megatron.model import TrainableModel
from trainer.engines.megatron.parameter_gather import ParameterGather
from trainer.frameworks.megatron_lm.spelling import whole_iteration
from trainer.recipe import Recipe
from trainer.recipe.identity import effective
from trainer.recipe.predicates import has_graphs

Schedule = Callable[..., Any]


class Graphs:
    """No graphs; the others differ in some of these."""

    settled_after = 0  # steps until every later one is alike: what comes before is not measured

    def around(self, schedule: Schedule) -> Schedule:
        return schedule

    def before_step(self, taken: int) -> None:
        """Runs before a step, outside the measured time, with the number of steps taken so far."""

    def after_step(self, taken: int) -> None:
        """Runs once the step is done, `taken` including it."""

    def delete(self) -> None:
        """Lets go of what was captured here; what Megatron keeps for itself is for `forget`."""


class LocalLayers(Graphs):
    """The schedule captures at its end, in the first step."""

    settled_after = 2


class WholeIteration(Graphs):
    """Forward and backward of all micro batches in one graph, captured in the step after the warm-up."""

    def __init__(self, warmup_steps: int) -> None:
        self._warmup_steps = warmup_steps
        self.settled_after = warmup_steps + 2

    def around(self, schedule: Schedule) -> Schedule:
        from megatron.core.full_cuda_graph import FullCudaGraphWrapper

        wrapped: Schedule = FullCudaGraphWrapper(schedule, cuda_graph_warmup_steps=self._warmup_steps)
        return wrapped


class TransformerEngineLayers(Graphs):
    """The parts of every layer that are in scope, captured between two steps after the warm-up.

    Hooks that gather parameters cannot be captured: they are off meanwhile, and called by hand afterwards.
    """

    def __init__(self, recipe: Recipe, model: TrainableModel, gather: ParameterGather) -> None:
        from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

        self._warmup_steps, self._gather = recipe.knob("cuda_graph_warmup_steps"), gather
        self.settled_after = self._warmup_steps + 1
        self._helper = TECudaGraphHelper(
            model=model.chunks,
            config=model.config,
            seq_length=recipe.training.seq_length,
            micro_batch_size=recipe.training.micro_batch_size,
            optimizers=[model.optimizer],
        )

    def before_step(self, taken: int) -> None:
        if taken != self._warmup_steps or self._helper.graphs_created():
            return
        with self._gather.suspended():
            self._helper.create_cudagraphs()
        if taken and self._gather.by_hooks:
            self._helper.cuda_graph_set_manual_hooks()

    def after_step(self, taken: int) -> None:
        """Captured before the first step, there were no hooks yet."""
        if taken == 1 and self._warmup_steps == 0 and self._gather.by_hooks:
            self._helper.cuda_graph_set_manual_hooks()

    def delete(self) -> None:
        if self._helper.graphs_created():
            self._helper.delete_cuda_graphs()


def graphs_of(recipe: Recipe, model: TrainableModel, gather: ParameterGather) -> Graphs:
    """Returns the driver of the recipe's CUDA graphs. Settings that Megatron refuses raise Megatron's own error."""
    impl = effective(recipe, "cuda_graph_impl")
    if whole_iteration(recipe):
        return WholeIteration(recipe.knob("cuda_graph_warmup_steps"))
    if impl == "transformer_engine":
        return TransformerEngineLayers(recipe, model, gather)
    return LocalLayers() if impl == "local" else Graphs()


@contextlib.contextmanager
def stream_for_graphs(recipe: Recipe) -> Iterator[None]:
    """Transformer Engine's graphs are captured on the stream this process works on, which may not be the default one:
    process groups and model are made on it too. Source: initialize.py:333."""
    if effective(recipe, "cuda_graph_impl") != "transformer_engine":
        yield
        return
    torch.cuda.set_stream(torch.cuda.Stream())
    try:
        yield
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream())


def tracks_randomness_in_transformer_engine(recipe: Recipe, *, transformer_engine: bool) -> bool:
    """Returns whether Transformer Engine's RNG tracker is used: as asked, and always with CUDA graphs of its layers.
    Source: arguments.py:1246 sets it so."""
    return bool(recipe.knob("use_te_rng_tracker") or (has_graphs(recipe) and transformer_engine))


def count_micro_batches(recipe: Recipe) -> None:
    """Tells Megatron how many there are: its graphs ask. Source: cuda_graphs.py:2055, :2125."""
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator

    sizes = recipe.training
    init_num_microbatches_calculator(
        0, None, sizes.global_batch_size, sizes.micro_batch_size, recipe.data_parallel_size, False
    )
