"""Drives CUDA graphs as Megatron-LM's training loop does: captures them, and counts the steps that come before.

With impl `local` the schedule itself captures graphs of layers at the end of the first step; Transformer Engine's are
captured by a helper between two steps, a graph of the whole iteration by a wrapper around the schedule. Source:
Megatron-LM 0.16.1, training.py:2608, :2673, :2738-2750, :2830. Not run on a GPU: tests use fakes of Megatron's classes.
"""

from __future__ import annotations

import contextlib
import inspect
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
    """The driver of a recipe without CUDA graphs; subclasses drive one kind of graphs each."""

    settled_after = 0  # number of first steps, not measured, after which steps take a constant time

    def around(self, schedule: Schedule) -> Schedule:
        return schedule

    def before_step(self, taken: int) -> None:
        """Runs before each step, outside the measured time; `taken` is the number of steps so far."""

    def after_step(self, taken: int) -> None:
        """Runs after each step; `taken` is the number of steps so far."""

    def delete(self) -> None:
        """Deletes what this driver captured; what Megatron keeps in globals is reset by `forget`."""


class LocalLayers(Graphs):
    """Drives graphs of impl `local`, which the schedule captures at the end of the first step."""

    settled_after = 2


class WholeIteration(Graphs):
    """Drives one graph of the forward and backward of all micro batches, captured in the step after the warm-up."""

    def __init__(self, warmup_steps: int, model: TrainableModel) -> None:
        self._warmup_steps, self._model = warmup_steps, model
        self.settled_after = warmup_steps + 2

    def around(self, schedule: Schedule) -> Schedule:
        from megatron.core.full_cuda_graph import FullCudaGraphWrapper

        pool = _pool(FullCudaGraphWrapper, self._model)
        wrapped: Schedule = FullCudaGraphWrapper(schedule, cuda_graph_warmup_steps=self._warmup_steps, **pool)
        return wrapped


def _pool(wrapper: type, model: TrainableModel) -> dict[str, Any]:
    """Returns the argument about pools of memory that Megatron-LM gives to its wrappers, which take it from 0.18 on."""
    takes_it = "use_single_mempool" in inspect.signature(wrapper).parameters
    return {"use_single_mempool": model.config.cuda_graph_use_single_mempool} if takes_it else {}


def graphed_after(recipe: Recipe) -> int:
    """Returns the number of first steps after which the optimizer's graph is captured; 0 without one."""
    return int(recipe.knob("cuda_graph_warmup_steps")) + 2 if effective(recipe, "optimizer_cuda_graph") else 0


def optimizer_step(recipe: Recipe, model: TrainableModel) -> Callable[[], Any]:
    """Returns the optimizer's step, as one CUDA graph after the warm-up if the recipe asks for it (0.17 and later).
    Source: Megatron-LM 0.19.2, training.py:3634."""
    if not effective(recipe, "optimizer_cuda_graph"):
        step: Callable[[], Any] = model.optimizer.step
        return step
    from megatron.core.optimizer.optimizer_cuda_graph import OptimizerCudaGraphWrapper

    warmup_steps, pool = recipe.knob("cuda_graph_warmup_steps"), _pool(OptimizerCudaGraphWrapper, model)
    graph: Callable[[], Any] = OptimizerCudaGraphWrapper(
        model.optimizer.step, cuda_graph_warmup_steps=warmup_steps, **pool
    )
    return graph


class TransformerEngineLayers(Graphs):
    """Drives Transformer Engine's graphs of the layer parts in scope, captured between two steps after the warm-up.

    Hooks that gather parameters cannot be captured: they are off during the capture, and called by hand afterwards.
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
        """Sets the manual hooks after the first step if graphs were captured before it, when there were no hooks
        yet."""
        if taken == 1 and self._warmup_steps == 0 and self._gather.by_hooks:
            self._helper.cuda_graph_set_manual_hooks()

    def delete(self) -> None:
        if self._helper.graphs_created():
            self._helper.delete_cuda_graphs()


def graphs_of(recipe: Recipe, model: TrainableModel, gather: ParameterGather) -> Graphs:
    """Returns the driver of the recipe's CUDA graphs. Settings that Megatron refuses raise Megatron's own error."""
    impl = effective(recipe, "cuda_graph_impl")
    if whole_iteration(recipe):
        return WholeIteration(recipe.knob("cuda_graph_warmup_steps"), model)
    if impl == "transformer_engine":
        return TransformerEngineLayers(recipe, model, gather)
    return LocalLayers() if impl == "local" else Graphs()


@contextlib.contextmanager
def stream_for_graphs(recipe: Recipe) -> Iterator[None]:
    """Makes the block run on the stream on which Transformer Engine's graphs are captured, which may not be the default
    one; process groups and model are made on it too. Source: initialize.py:338."""
    if effective(recipe, "cuda_graph_impl") != "transformer_engine":
        yield
        return
    torch.cuda.set_stream(torch.cuda.Stream())
    try:
        yield
    finally:
        torch.cuda.set_stream(torch.cuda.default_stream())


def tracks_randomness_in_transformer_engine(recipe: Recipe, *, transformer_engine: bool) -> bool:
    """Returns whether Transformer Engine's RNG tracker is used: if the recipe says so, and always with CUDA graphs
    where its layers are used. Source: arguments.py:1246."""
    return bool(recipe.knob("use_te_rng_tracker") or (has_graphs(recipe) and transformer_engine))


def count_micro_batches(recipe: Recipe) -> None:
    """Sets Megatron's number of micro batches, which its graphs ask for. Source: cuda_graphs.py:2055, :2125."""
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator

    sizes = recipe.training
    init_num_microbatches_calculator(
        0, None, sizes.global_batch_size, sizes.micro_batch_size, recipe.data_parallel_size, False
    )
