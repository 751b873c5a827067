"""Megatron-Bridge: the user's command with the recipe's overrides behind it, then the burst's; Hydra takes the last.

Source: megatron/bridge/training/config.py 0.3.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainer.command_line.megatron_bridge.overrides import overrides
from trainer.engines.command.kinds.asked import Asked


def argv(asked: Asked) -> tuple[str, ...]:
    return (*asked.trainer.command, *overrides(asked.recipe), *_of_the_burst(asked))


def _of_the_burst(asked: Asked) -> Iterator[str]:
    bounds = asked.bounds
    yield f"train.exit_interval={bounds.last}"
    yield from ("train.eval_iters=0", "logger.log_interval=1", "logger.log_throughput=true")
    yield from ("checkpoint.save=null", "checkpoint.load=null", "checkpoint.pretrained_checkpoint=null")
    if not asked.torch_trace and not asked.nsys_trace:
        return
    profiler = "use_pytorch_profiler" if asked.torch_trace else "use_nsys_profiler"
    start = bounds.profile_start - asked.nsys_trace
    yield from (f"++profiling.{profiler}=true", f"++profiling.profile_step_start={start}")
    yield f"++profiling.profile_step_end={bounds.profile_end}"
    yield f"++profiling.profile_ranks=[{','.join(map(str, asked.ranks))}]"
    yield f"logger.tensorboard_dir={asked.folder / 'tensorboard'}"
