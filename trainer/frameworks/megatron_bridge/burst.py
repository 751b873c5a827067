"""Megatron-Bridge: the user's command with the recipe's overrides behind it, then the burst's; Hydra takes the last.

Source: megatron/bridge/training/config.py 0.3.1.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from trainer.frameworks.burst import COMMAND, WRITTEN, BurstRequest
from trainer.frameworks.megatron_bridge.hydra import literal
from trainer.frameworks.megatron_bridge.versions import version_of
from trainer.frameworks.megatron_bridge.words import OVERLAP, with_recipe

CONFIGURATION = "configuration.yaml"  # what Bridge ends with, in its own folder
_TAKEN_AWAY, _HAS_NONE = f"{OVERLAP}=null", f"{OVERLAP}: null"


def burst_argv(request: BurstRequest) -> tuple[str, ...]:
    version = version_of(request.trainer.version)
    overlap = has_overlap(request.folder.parent.parent)
    return (*with_recipe(request.trainer.command, request.recipe, version, overlap=overlap), *_burst_words(request))


def has_overlap(bursts: Path) -> bool:
    """Whether the Bridge recipe has a `comm_overlap`, by the first burst that left Bridge's configuration without
    having taken it away; True where none did."""
    for configuration in sorted(bursts.glob(f"*/{WRITTEN}/{CONFIGURATION}")):
        command = configuration.parent.parent / COMMAND
        if not command.exists() or _TAKEN_AWAY in shlex.split(command.read_text()):
            continue
        return _HAS_NONE not in configuration.read_text(errors="replace").splitlines()
    return True


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
    yield from ("profiling=null", f"++profiling={literal(profiling)}")  # a recipe may have none, or one of its own
    if request.torch_trace:
        yield f"logger.tensorboard_dir={literal(str(request.folder / 'tensorboard'))}"
