"""The command of a burst with Megatron-Bridge: the user's command, then the recipe's overrides, then the burst's; in
Hydra the last one counts. Source: megatron/bridge/training/config.py 0.3.1."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.frameworks.burst import BurstRequest
from trainer.frameworks.megatron_bridge.command import CONFIGURATION, has_overlap, with_recipe
from trainer.frameworks.megatron_bridge.hydra import literal
from trainer.frameworks.megatron_bridge.versions import version_of


def burst_argv(request: BurstRequest) -> tuple[str, ...]:
    version = version_of(request.trainer.version)
    overlap = has_overlap(request.folder.parent.parent)
    return (*with_recipe(request.trainer.command, request.recipe, version, overlap=overlap), *_burst_words(request))


def _burst_words(request: BurstRequest) -> Iterator[str]:
    bounds = request.bounds
    yield f"train.exit_interval={bounds.last}"
    yield from ("train.eval_iters=0", "logger.log_interval=1", "logger.log_throughput=true")
    yield from ("checkpoint.save=null", "checkpoint.load=null", "checkpoint.pretrained_checkpoint=null")
    yield from ("logger.wandb_project=null", "logger.wandb_exp_name=null", "train.rampup_batch_size=null")
    yield f"logger.save_config_filepath={literal(str(request.folder / CONFIGURATION))}"
    if not request.torch_trace:
        yield "logger.tensorboard_dir=null"
    if not request.torch_trace and not request.nsys_trace:
        return
    profiling = {
        "_target_": "megatron.bridge.training.config.ProfilingConfig",
        "use_pytorch_profiler": request.torch_trace,
        "use_nsys_profiler": request.nsys_trace,
        "profile_step_start": bounds.profile_start - request.nsys_trace,
        "profile_step_end": bounds.profile_end,
        "profile_ranks": list(request.ranks),
    }
    # a Bridge recipe may have no profiling section, or one of its own
    yield from ("profiling=null", f"++profiling={literal(profiling)}")
    if request.torch_trace:
        yield f"logger.tensorboard_dir={literal(str(request.folder / 'tensorboard'))}"
