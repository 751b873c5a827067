"""Runs one burst on one rank: builds the model, takes and times the steps, traces some, compares the replicas.

Timed steps run before traced ones, and unmodified. At the end all state that Megatron-Core keeps in the process is
reset, so that the next burst starts like the first.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import os
import shutil
import time
import traceback
from collections.abc import Iterator
from enum import Enum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.burst import Burst, BurstPhase
from trainer.engines.megatron import compat, needs, ranges, replicas
from trainer.engines.megatron.config import MegatronConfigs, build_configs
from trainer.engines.megatron.device import Device
from trainer.engines.megatron.extensions import build_extensions
from trainer.engines.megatron.graphs import (
    count_micro_batches,
    stream_for_graphs,
    tracks_randomness_in_transformer_engine,
)
from trainer.engines.megatron.groups import parallel_state_of
from trainer.engines.megatron.model import TrainableModel, build_model
from trainer.engines.megatron.phases import PhaseFile, phases_of_schedule
from trainer.engines.megatron.process import cores_per_rank, process_settings
from trainer.engines.megatron.production import differences
from trainer.engines.megatron.steps import Measured, Steps
from trainer.engines.megatron.user_buffers import user_buffers
from trainer.frameworks.megatron_lm.spelling import whole_iteration
from trainer.rank_report import RankError, RankReport
from trainer.recipe import Recipe
from trainer.recipe.predicates import has_graphs


def import_megatron() -> None:
    """Imports the modules of Megatron-Core that a burst needs, ahead of the first burst, since importing takes longer
    than most bursts."""
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        from trainer.engines.megatron.cpu import import_uncompiled

        import_uncompiled()
    importlib.import_module("torch._dynamo")  # else imported in the first burst, whose memory counts
    import megatron.core.distributed
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.models.gpt.gpt_model
    import megatron.core.optimizer
    import megatron.core.pipeline_parallel  # noqa: F401


def run_burst(burst: Burst, *, rank: int, device: Device, store: Any, startup_s: float) -> RankReport:
    """Runs a burst and returns the rank's report.

    Errors of training are in the report, with their phase; they are not raised.
    """
    measured, phase, error = Measured(), PhaseFile(burst.folder, rank), None
    try:
        _train(burst, rank, device, store, measured, phase)
    except Exception as exception:  # an exception of training is the result of this burst
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
        outside_gib=measured.outside_gib,
        limit_gib=burst.recipe.memory_limit_gib,
        cores=cores_per_rank(),
        startup_s=startup_s,
        setup_s=measured.setup_s,
        attainable_tflops=measured.attainable_tflops,
        layers="transformer_engine" if uses_transformer_engine(burst.recipe) else "local",
        versions=_versions(),
        acting=measured.acting,
        differences=measured.differences,
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
        stack.enter_context(on_device(device))
        measured.attainable_tflops = device.attainable_tflops()
        stack.enter_context(stream_for_graphs(recipe))
        stack.enter_context(_process_groups(recipe, device, store, rank))
        stack.enter_context(user_buffers(recipe))
        build_extensions(recipe)
        with device.held(recipe.memory_limit_gib):
            try:
                model = _set_up(recipe, burst.seed, measured)
                steps = Steps(recipe, model, device, burst.seed, measured, phase)
                stack.enter_context(phases_of_schedule(phase))
                for index in range(steps.unmeasured + recipe.burst.measure_steps):
                    steps.take(timed=index >= steps.unmeasured)
            finally:
                measured.peak_gib, measured.outside_gib = device.peak_gib(), device.outside_gib()
        phase.enter(BurstPhase.TRACE)  # outside the limit: memory of a profiler is not the recipe's
        _trace(recipe, steps, model, burst.folder / "trace" / f"rank{rank}.pt.trace.json.gz")
        phase.enter(BurstPhase.CHECK)
        if not recipe.knob("use_megatron_fsdp"):  # ranks of Megatron-FSDP hold shards: none must be equal
            measured.diverged = replicas.find_divergence(model.chunks)
        steps.end()


def _refuse_what_is_missing(recipe: Recipe, device: Device) -> None:
    """Raises an error if the burst could run, but not as the recipe says."""
    if device.name == "cpu" and not recipe.hardware.is_cpu:
        raise ValueError(
            f"the recipe is for {recipe.cluster.gpu_name} GPUs, and this machine has no GPU that torch can use"
        )
    if not uses_transformer_engine(recipe) and (missing := needs.missing_transformer_engine(recipe)):
        raise ImportError(missing)


@contextlib.contextmanager
def on_device(device: Device) -> Iterator[None]:
    if device.name == "cpu":
        from trainer.engines.megatron.cpu import megatron_on_cpu as prepared
    else:
        from trainer.engines.megatron.without_te import transformer_engine_missing as prepared

    with prepared():
        yield


@contextlib.contextmanager
def _process_groups(recipe: Recipe, device: Device, store: Any, rank: int) -> Iterator[None]:
    """Sets up new process groups for a burst: ranks that stay up keep only their imports."""
    from datetime import timedelta

    timeout = timedelta(seconds=recipe.burst.deadline_s)
    dist.init_process_group(device.backend, store=store, rank=rank, world_size=recipe.world_size, timeout=timeout)
    with parallel_state_of(recipe):
        dist.barrier()  # opens the connections, before memory is counted
        if has_graphs(recipe):
            count_micro_batches(recipe)
        yield


def _set_up(recipe: Recipe, seed: int, measured: Measured) -> TrainableModel:
    from megatron.core import tensor_parallel

    start = time.perf_counter()
    torch.manual_seed(seed)
    transformer_engine = uses_transformer_engine(recipe)
    tensor_parallel.model_parallel_cuda_manual_seed(
        seed,
        te_rng_tracker=tracks_randomness_in_transformer_engine(recipe, transformer_engine=transformer_engine),
        use_cudagraphable_rng=has_graphs(recipe),
        force_reset_rng=True,
    )
    configs = build_configs(recipe, transformer_engine=transformer_engine)
    measured.acting.update(acting_knobs(recipe, configs))
    measured.differences += differences(recipe, transformer_engine=transformer_engine)
    if configs.unknown:
        measured.warnings.append(
            f"megatron-core {_version_of('megatron-core')} has no field for {', '.join(configs.unknown)}: not set"
        )
    model = build_model(recipe, configs, transformer_engine=transformer_engine)
    measured.setup_s = time.perf_counter() - start
    return model


def acting_knobs(recipe: Recipe, configs: MegatronConfigs) -> dict[str, Any]:
    """Returns each written knob as the built configurations have it, in the recipe's spelling, since Megatron changes
    some. Leaves out null knobs, for which Megatron fills in a value."""
    acting: dict[str, Any] = {}
    for name, written in recipe.knobs.items():
        for config in (configs.transformer, configs.ddp, configs.optimizer):
            value = getattr(config, name, None)
            if value is not None and written is not None:
                acting[name] = _in_recipe_words(value)
    return acting | (_as_written(recipe, GRAPH_WORDS) if whole_iteration(recipe) else {})


OPTIONAL_PACKAGES = {"deep-ep": "deep_ep", "grouped-gemm": "grouped_gemm"}  # package -> its module
UNKNOWN_VERSION = "unknown"
GRAPH_WORDS = ("cuda_graph_impl", "cuda_graph_scope")


def _as_written(recipe: Recipe, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the recipe's values of knobs that releases spell in two ways with the same meaning (a graph of the whole
    iteration)."""
    return {name: _in_recipe_words(recipe.knobs[name]) for name in names if recipe.knobs.get(name) is not None}


def _in_recipe_words(value: Any) -> str | int | float | bool:
    """Returns a value as recipes spell it: lists as `a,b`, members of an enum by name, torch's dtypes without
    `torch.`."""
    if isinstance(value, (list, tuple)):
        return ",".join(str(_in_recipe_words(item)) for item in value)
    if isinstance(value, Enum):
        return value.name
    return value if isinstance(value, (bool, int, float, str)) else str(value).removeprefix("torch.")


def _trace(recipe: Recipe, steps: Steps, model: TrainableModel, path: Path) -> None:
    """Takes one step while the profiler warms up, then `trace_steps` recorded ones, and writes one gzipped Chrome
    trace; does nothing if none is to be traced."""
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
    """Returns the version of each package that is installed; "unknown" if it can only be imported."""
    names = {name: _version_of(name) for name in ("torch", "megatron-core", "transformer-engine", *OPTIONAL_PACKAGES)}
    found = {name: UNKNOWN_VERSION for name, module in OPTIONAL_PACKAGES.items() if find_spec(module)}
    return found | {name: version for name, version in names.items() if version}
