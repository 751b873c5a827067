"""One burst on one rank: build the model, take the steps, time them, trace some, compare the replicas.

Order matters: timed steps run before traced ones, and unmodified; everything Megatron-Core keeps in this process
is forgotten at the end, so that the next burst starts as the first did.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import math
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from trainer.burst import Burst, BurstPhase
from trainer.engines.megatron import compat, needs, ranges, replicas
from trainer.engines.megatron.config import MegatronConfigs, build_configs
from trainer.engines.megatron.data import batches
from trainer.engines.megatron.device import Device
from trainer.engines.megatron.groups import parallel_state_of
from trainer.engines.megatron.model import TrainableModel, build_model
from trainer.engines.megatron.process import cores_per_rank, process_settings
from trainer.rank_report import RankError, RankReport, phase_path
from trainer.recipe import Recipe


class NanLossError(ArithmeticError):
    """The loss of a step is not a finite number."""


class PhaseFile:
    """Where this rank is, written in place so that it can be read after a SIGKILL. About 2 µs a change."""

    def __init__(self, burst_folder: Path, rank: int) -> None:
        path = phase_path(burst_folder, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w+b", buffering=0)
        self.phase = BurstPhase.START

    def enter(self, phase: BurstPhase) -> None:
        if phase is not self.phase:
            self.phase = phase
            self._file.seek(0)
            self._file.write(f"{phase.value:<12}".encode())

    def close(self) -> None:
        self._file.close()


@dataclass
class Measured:
    """What a rank gathers while it trains; becomes its report even if a later step fails."""

    step_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    setup_s: float = 0.0
    peak_gib: float = 0.0
    diverged: str | None = None
    attainable_tflops: float | None = None
    acting: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def import_megatron() -> None:
    """What a burst needs of Megatron-Core, imported before the first one: it takes longer than most bursts."""
    import megatron.core.distributed
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.models.gpt.gpt_model
    import megatron.core.optimizer
    import megatron.core.pipeline_parallel  # noqa: F401


def run_burst(burst: Burst, *, rank: int, device: Device, store: Any, startup_s: float, before: int) -> RankReport:
    """Never raises for what training does: the report carries the error, with the phase it came in."""
    measured, phase, error = Measured(), PhaseFile(burst.folder, rank), None
    try:
        _train(burst, rank, device, store, measured, phase)
    except Exception as exception:  # whatever training throws is this burst's result
        error = RankError(
            type=type(exception).__name__,
            message=str(exception)[:4000],
            phase=phase.phase,
            at_s=time.time(),
            traceback=traceback.format_exc()[-8000:],
        )
    phase.close()
    return RankReport(
        rank=rank,
        error=error,
        diverged=measured.diverged,
        step_us=measured.step_us,
        cpu_us=measured.cpu_us,
        loss=measured.loss,
        peak_gib=measured.peak_gib,
        limit_gib=burst.recipe.memory_limit_gib,
        cores=cores_per_rank(),
        startup_s=startup_s,
        setup_s=measured.setup_s,
        bursts_before=before,
        attainable_tflops=measured.attainable_tflops,
        layers="transformer_engine" if uses_transformer_engine(burst.recipe) else "local",
        versions=_versions(),
        acting=measured.acting,
        warnings=measured.warnings,
    )


def uses_transformer_engine(recipe: Recipe) -> bool:
    return recipe.knob("transformer_impl") != "local" and torch.cuda.is_available() and compat.has_transformer_engine()


def _train(burst: Burst, rank: int, device: Device, store: Any, measured: Measured, phase: PhaseFile) -> None:
    recipe = burst.recipe
    phase.enter(BurstPhase.INIT)
    _refuse_what_is_missing(recipe, device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(process_settings(recipe))
        stack.enter_context(_on_device(device))
        measured.attainable_tflops = device.attainable_tflops()
        stack.enter_context(_process_groups(recipe, device, store, rank))
        with device.held(recipe.memory_limit_gib):
            try:
                model = _set_up(recipe, burst.seed, measured)
                steps = _Steps(recipe, model, device, burst.seed, measured, phase)
                stack.enter_context(_phases_of_schedule(phase))
                for index in range(recipe.burst.warmup_steps + recipe.burst.measure_steps):
                    steps.take(timed=index >= recipe.burst.warmup_steps)
            finally:
                measured.peak_gib = device.peak_gib()
        phase.enter(BurstPhase.TRACE)  # outside the limit: what a profiler holds is not the recipe's
        _trace(recipe, steps, model, burst.folder / "trace" / f"rank{rank}.pt.trace.json.gz")
        phase.enter(BurstPhase.CHECK)
        measured.diverged = replicas.find_divergence(model.chunks)
        model.release()


def _refuse_what_is_missing(recipe: Recipe, device: Device) -> None:
    """Raises where the burst would run, but not be what the recipe asks for."""
    if device.name == "cpu" and not recipe.hardware.is_cpu:
        raise ValueError(f"the recipe is for {recipe.cluster.gpu} GPUs, and this machine has no GPU that torch can use")
    if not uses_transformer_engine(recipe) and (missing := needs.missing_transformer_engine(recipe)):
        raise ImportError(missing)


@contextlib.contextmanager
def _on_device(device: Device) -> Iterator[None]:
    if device.name != "cpu":
        yield
        return
    from trainer.engines.megatron.cpu import megatron_on_cpu

    with megatron_on_cpu():
        yield


@contextlib.contextmanager
def _process_groups(recipe: Recipe, device: Device, store: Any, rank: int) -> Iterator[None]:
    """Fresh process groups for every burst: a warm rank keeps its imports, nothing else."""
    from datetime import timedelta

    timeout = timedelta(seconds=recipe.burst.deadline_s)
    dist.init_process_group(device.backend, store=store, rank=rank, world_size=recipe.world_size, timeout=timeout)
    with parallel_state_of(recipe):
        dist.barrier()  # opens the connections, before memory is counted
        yield


def _set_up(recipe: Recipe, seed: int, measured: Measured) -> TrainableModel:
    from megatron.core import tensor_parallel

    start = time.perf_counter()
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(
        seed, te_rng_tracker=recipe.knob("use_te_rng_tracker"), force_reset_rng=True
    )
    transformer_engine = uses_transformer_engine(recipe)
    configs = build_configs(recipe, transformer_engine=transformer_engine)
    measured.acting.update(acting_knobs(recipe, configs))
    measured.warnings += [f"{row.knob} did not act: {row.why}" for row in needs.not_driven(recipe)]
    if configs.unknown:
        measured.warnings.append(
            f"megatron-core {_version_of('megatron-core')} has no field for {', '.join(configs.unknown)}: not set"
        )
    model = build_model(recipe, configs, transformer_engine=transformer_engine)
    measured.setup_s = time.perf_counter() - start
    return model


def acting_knobs(recipe: Recipe, configs: MegatronConfigs) -> dict[str, Any]:
    """Each written knob as the built configurations hold it, in the recipe's spelling: Megatron changes some on its
    own. Null asks for nothing and is left out: Megatron fills in what it means."""
    acting: dict[str, Any] = {}
    for name, asked in recipe.knobs.items():
        for config in (configs.transformer, configs.ddp, configs.optimizer):
            value = getattr(config, name, None)
            if value is not None and asked is not None:
                acting[name] = _in_recipe_words(value)
    return acting | {row.knob: row.acting for row in needs.not_driven(recipe)}


def _in_recipe_words(value: Any) -> str | int | float | bool:
    """Lists as `a,b`, members of an enum by name, torch's dtypes without `torch.`."""
    if isinstance(value, (list, tuple)):
        return ",".join(str(_in_recipe_words(item)) for item in value)
    if isinstance(value, Enum):
        return value.name
    return value if isinstance(value, (bool, int, float, str)) else str(value).removeprefix("torch.")


@contextlib.contextmanager
def _phases_of_schedule(phase: PhaseFile) -> Iterator[None]:
    """The schedules' own forward and backward steps say where the rank is."""
    from megatron.core.pipeline_parallel import schedules

    def announcing(name: BurstPhase, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            phase.enter(name)
            return function(*args, **kwargs)

        return step

    with (
        mock.patch.object(schedules, "forward_step", announcing(BurstPhase.FORWARD, schedules.forward_step)),
        mock.patch.object(schedules, "backward_step", announcing(BurstPhase.BACKWARD, schedules.backward_step)),
    ):
        yield


class _Steps:
    """Training steps, one after another, over one stream of batches."""

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
        self._schedule = get_forward_backward_func()
        self._iterators = [batches(recipe, seed=seed, device=device.name) for _ in model.chunks]

    def take(self, *, timed: bool) -> None:
        """One optimizer step on all ranks. Raises NanLossError if its loss is not finite."""
        dist.barrier()
        self._device.synchronize()
        start, cpu_start = time.perf_counter(), time.process_time()
        with ranges.span("step"):
            self._collect_garbage()
            losses = self._forward_backward()
            self._phase.enter(BurstPhase.OPTIMIZER)
            with ranges.span("optimizer"):
                self._model.optimizer.step()
        self._device.synchronize()
        elapsed_us, cpu_us = (time.perf_counter() - start) * 1e6, (time.process_time() - cpu_start) * 1e6
        if timed:
            self._measured.step_us.append(elapsed_us)
            self._measured.cpu_us.append(cpu_us)
        self._keep_loss(losses)

    def _collect_garbage(self) -> None:
        """With `manual_gc`, Megatron-LM collects every `manual_gc_interval` steps (0: never); the step pays for it."""
        interval = self._recipe.knob("manual_gc_interval") if self._recipe.knob("manual_gc") else 0
        if interval and self._taken % interval == 0:
            gc.collect()
        self._taken += 1

    def _forward_backward(self) -> list[dict[str, Any]]:
        for chunk in self._model.chunks:
            chunk.zero_grad_buffer()
        self._model.optimizer.zero_grad()
        one = len(self._model.chunks) == 1
        losses: list[dict[str, Any]] = self._schedule(
            forward_step_func=self._forward,
            data_iterator=self._iterators[0] if one else self._iterators,
            model=self._model.chunks[0] if one else self._model.chunks,
            num_microbatches=self._recipe.num_microbatches,
            seq_length=self._recipe.training.seq_length,
            micro_batch_size=self._recipe.training.micro_batch_size,
            forward_only=False,
        )
        return losses

    # No mask: attention is causal by its type, and a mask of seq² bytes would count as the recipe's memory
    def _forward(self, iterator: Any, model: Any, return_schedule_plan: bool = False) -> tuple[Any, Callable[..., Any]]:
        tokens, labels, positions = next(iterator)
        if return_schedule_plan:  # EP communication overlap runs the layers of two micro batches from a plan
            return model.build_schedule_plan(tokens, positions, None, labels=labels), self._loss
        return model(tokens, positions, None, labels=labels), self._loss

    def _loss(self, output: Any) -> tuple[Any, dict[str, Any]]:
        """Mean over this rank's tokens; Megatron multiplies by the cp size, because it expects a share of a sum."""
        loss = output.float().mean()
        return loss / self._recipe.parallelism.context_parallel_size, {"loss": loss.detach().clone()}

    def _keep_loss(self, losses: list[dict[str, Any]]) -> None:
        from megatron.core import parallel_state

        if not losses or not parallel_state.is_pipeline_last_stage(ignore_virtual=True):
            return
        mean = torch.stack([entry["loss"] for entry in losses]).mean()
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        dist.all_reduce(mean, group=group)
        value = float(mean) / group.size()
        if not math.isfinite(value):  # JSON has no such number: it is told in words
            raise NanLossError(f"loss is {value} at step {len(self._measured.loss) + 1}")
        self._measured.loss.append(value)


def _trace(recipe: Recipe, steps: _Steps, model: TrainableModel, path: Path) -> None:
    """Profiles `trace_steps` steps after one more unprofiled, into one gzipped Chrome trace."""
    if recipe.burst.trace_steps == 0:
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = path.with_suffix("")
    profile = torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=recipe.burst.trace_steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(plain)),
    )
    with ranges.instrumented(model.config), profile as profiler:
        for _ in range(recipe.burst.trace_steps + 1):
            steps.take(timed=False)
            profiler.step()
    with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=1) as target:
        shutil.copyfileobj(source, target)
    plain.unlink()


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _versions() -> dict[str, str]:
    names = ("torch", "megatron-core", "transformer-engine", "deep-ep")
    return {name: version for name in names if (version := _version_of(name))}
