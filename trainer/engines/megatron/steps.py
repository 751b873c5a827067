"""Takes training steps as Megatron-LM's training loop does, and times each.

The order inside a step is that of Megatron-LM 0.16.1, training.py:1603-1735.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from trainer.burst import BurstPhase, Difference
from trainer.engines.megatron import ranges
from trainer.engines.megatron.config import checks_for_nan
from trainer.engines.megatron.data import Feed, batches
from trainer.engines.megatron.device import Device
from trainer.engines.megatron.graphs import graphed_after, graphs_of, optimizer_step
from trainer.engines.megatron.model import TrainableModel
from trainer.engines.megatron.paged_stash import rerun_when_full
from trainer.engines.megatron.parameter_gather import ParameterGather
from trainer.engines.megatron.phases import PhaseFile
from trainer.recipe import Recipe


class NanLossError(ArithmeticError):
    """The loss of a step is not a finite number."""


@dataclass
class Measured:
    """The measurements of a rank so far; they become its report even if a later step fails."""

    step_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    setup_s: float = 0.0
    peak_gib: float = 0.0
    outside_gib: float | None = None
    diverged: str | None = None
    attainable_tflops: float | None = None
    acting: dict[str, Any] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Steps:
    """Runs training steps on one stream of batches."""

    def __init__(
        self,
        recipe: Recipe,
        model: TrainableModel,
        device: Device,
        seed: int,
        measured: Measured,
        phase: PhaseFile,
    ) -> None:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self._recipe, self._model, self._device = recipe, model, device
        self._measured, self._phase, self._taken = measured, phase, 0
        self._checks_for_nan = checks_for_nan(recipe)
        self._gather = ParameterGather(recipe, model)
        self._gather.hold()
        self._graphs = graphs_of(recipe, model, self._gather)
        self._schedule = rerun_when_full(recipe, model, self._graphs.around(get_forward_backward_func()))
        self._optimizer_step = optimizer_step(recipe, model)
        self._feeds = [Feed(batches(recipe, seed=seed), device.name) for _ in model.chunks]

    @property
    def unmeasured(self) -> int:
        """Returns the number of steps before the first measured one: the recipe's warm-up, and more until graphs are
        captured."""
        of_optimizer = graphed_after(self._recipe)
        return max(self._recipe.burst.warmup_steps, self._graphs.settled_after, of_optimizer)

    def take(self, *, timed: bool) -> None:
        """Runs one optimizer step on all ranks. Raises NanLossError if its loss is not finite."""
        self._graphs.before_step(self._taken)
        for feed in self._feeds:
            feed.draw(self._recipe.num_microbatches)
        dist.barrier()
        self._device.synchronize()
        start, cpu_start = time.perf_counter(), time.process_time()
        with ranges.span("step"):
            self._collect_garbage()
            losses = self._forward_backward()
            self._phase.enter(BurstPhase.OPTIMIZER)
            with ranges.span("optimizer"):
                self._optimizer_step()
        self._device.synchronize()
        elapsed_us, cpu_us = (time.perf_counter() - start) * 1e6, (time.process_time() - cpu_start) * 1e6
        if timed:
            self._measured.step_us.append(elapsed_us)
            self._measured.cpu_us.append(cpu_us)
        self._taken += 1
        self._gather.release()
        self._graphs.after_step(self._taken)
        self._keep_loss(losses)

    def end(self) -> None:
        """Deletes the graphs and releases the model after the last step."""
        self._graphs.delete()
        self._model.release()

    def _collect_garbage(self) -> None:
        """Collects garbage every `manual_gc_interval` steps with `manual_gc`, as Megatron-LM does (0: never).

        The step time includes it.
        """
        interval = self._recipe.knob("manual_gc_interval") if self._recipe.knob("manual_gc") else 0
        if interval and self._taken % interval == 0:
            gc.collect()

    def _forward_backward(self) -> list[dict[str, Any]]:
        for chunk in self._model.chunks:
            chunk.zero_grad_buffer()
        self._model.optimizer.zero_grad()
        self._gather.fill_buffer()
        one = len(self._model.chunks) == 1
        losses: list[dict[str, Any]] = self._schedule(
            forward_step_func=self._forward,
            data_iterator=self._feeds[0] if one else self._feeds,
            model=self._model.chunks[0] if one else self._model.chunks,
            num_microbatches=self._recipe.num_microbatches,
            seq_length=self._recipe.training.seq_length,
            micro_batch_size=self._recipe.training.micro_batch_size,
            forward_only=False,
        )
        return losses

    # No mask: attention is causal by its type, and a mask of seq² bytes would count as the recipe's memory
    def _forward(self, feed: Any, model: Any, return_schedule_plan: bool = False) -> tuple[Any, Callable[..., Any]]:
        batch = next(feed)
        tokens, labels, positions = batch["tokens"], batch["labels"], batch["positions"]
        if return_schedule_plan:  # EP communication overlap runs the layers of two micro batches from a plan
            return model.build_schedule_plan(tokens, positions, None, labels=labels), self._loss
        return model(tokens, positions, None, labels=labels), self._loss

    def _loss(self, output: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the mean loss over this rank's tokens divided by the CP size, since Megatron's schedules multiply by
        it; and the undivided loss to report."""
        loss = output.float().mean()
        if self._checks_for_nan:
            self._look_at(loss)
        return loss / self._recipe.parallelism.context_parallel_size, {"loss": loss.detach().clone()}

    def _look_at(self, loss: Any) -> None:
        """Raises NanLossError on a NaN or infinite loss, as pretrain_gpt.py checks in every micro batch, with two
        device syncs."""
        for wrong in (torch.isnan, torch.isinf):
            if wrong(loss):
                raise NanLossError(f"loss is {float(loss)} at step {self._taken + 1}")

    def _keep_loss(self, losses: list[dict[str, Any]]) -> None:
        from megatron.core import parallel_state

        if not losses or not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            return
        mean = torch.stack([entry["loss"] for entry in losses]).mean()
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        dist.all_reduce(mean, group=group)
        value = float(mean) / group.size()
        if not math.isfinite(value):  # JSON has no NaN or infinity: the error says so in words
            raise NanLossError(f"loss is {value} at step {len(self._measured.loss) + 1}")
        self._measured.loss.append(value)
