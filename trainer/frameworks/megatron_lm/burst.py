"""The command of a burst with Megatron-LM: the user's arguments without those that a burst decides, then the recipe's,
then the burst's. The list is edited, since most switches have no off-flag. The schedule stays the user's
(`--train-iters`, learning rate); `--exit-interval` ends the burst. Source: megatron/training/arguments.py, 0.16.1 and
2026-08."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.frameworks.burst import BurstRequest
from trainer.frameworks.megatron_lm.command import with_recipe
from trainer.frameworks.megatron_lm.flags import version_of
from trainer.launch_scripts.argv import without

# Flags of the user's command that a burst leaves out: it saves, loads and evaluates nothing and reports to nobody
LEFT_OUT = frozenset(
    f"--{name}"
    for name in (
        *("save", "save-interval", "save-retain-interval", "async-save", "non-persistent-save-interval"),
        *("load", "pretrained-checkpoint", "ckpt-step", "use-checkpoint-args", "log-progress", "finetune"),
        *("eval-iters", "eval-interval", "exit-interval", "log-interval", "log-throughput", "tensorboard-dir"),
        *("rampup-batch-size", "step-batch-size-schedule"),  # a burst runs the full batch
        *("skip-train", "full-validation", "exit-duration-in-mins"),
        *("wandb-project", "wandb-exp-name", "wandb-save-dir", "wandb-entity"),
        *("profile", "use-pytorch-profiler", "profile-step-start", "profile-step-end", "profile-ranks"),
        *("record-memory-history", "memory-snapshot-path", "nvtx-ranges", "pytorch-profiler-collect-shapes"),
        *("pytorch-profiler-collect-callstack", "pytorch-profiler-collect-chakra"),
    )
)
NEVER = "1000000"  # iterations; without an interval the parser of 0.16.1 divides by None
DATA = frozenset(
    f"--{name}"
    for name in (
        *("data-path", "train-data-path", "valid-data-path", "test-data-path", "data-args-path"),
        *("per-split-data-args-path", "split", "mock-data", "data-cache-path"),
    )
)


def burst_argv(request: BurstRequest) -> tuple[str, ...]:
    kept = without(request.trainer.command, LEFT_OUT | (DATA if request.trainer.mock_data else frozenset()))
    return (*with_recipe(kept, request.recipe, version_of(request.trainer.version)), *_burst_words(request))


def _burst_words(request: BurstRequest) -> Iterator[str]:
    bounds = request.bounds
    yield from ("--exit-interval", str(bounds.last), "--log-interval", "1", "--log-throughput")
    yield from ("--eval-iters", "0", "--eval-interval", NEVER)
    if request.trainer.mock_data:
        yield "--mock-data"
    if not request.torch_trace and not request.nsys_trace:
        return
    # with --profile-step-start s, torch.profiler records from step s, cudaProfilerStart from step s + 1
    start = bounds.profile_start - request.nsys_trace
    yield from ("--profile", "--profile-step-start", str(start), "--profile-step-end", str(bounds.profile_end))
    yield from ("--profile-ranks", *map(str, request.ranks))
    if request.torch_trace:
        yield from ("--use-pytorch-profiler", "--tensorboard-dir", str(request.folder / "tensorboard"))
