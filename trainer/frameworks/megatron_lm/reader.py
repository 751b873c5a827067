"""Reads a command of Megatron-LM, its log, or the arguments of a recorded run, as parts of a recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainer.errors import refused
from trainer.frameworks.megatron_lm.agreement import differences
from trainer.frameworks.megatron_lm.arguments import ARGUMENTS, defaults
from trainer.frameworks.megatron_lm.batch_schedule import SCHEDULE, last_batch, schedule_of
from trainer.frameworks.megatron_lm.checkout import checkout_version
from trainer.frameworks.megatron_lm.command import of_a_fork, with_recipe
from trainer.frameworks.megatron_lm.log import has_arguments, logged_tflops, logged_values
from trainer.frameworks.megatron_lm.packing import packing_flags, packing_values
from trainer.frameworks.megatron_lm.read import read, read_values
from trainer.frameworks.packing import kept_packing
from trainer.frameworks.reading import Difference, Document, ImportRequest, Kept, Reader, Reading
from trainer.launch_scripts.launchers import Sizes
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

MIN_FLAGS = 2  # least number of known flags for a command to count as Megatron-LM's
_PADDED = re.compile(r"padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)")
_GPU = re.compile(r"NVIDIA (?:A100|H100|H200|H800|B200|B300|GB200|GB300)[\w -]*")
# Flags that a burst does not use, since it saves nothing and writes elsewhere: their values need not be known.
UNUSED = frozenset(
    f"--{name}"
    for name in (
        *("save", "load", "tensorboard-dir", "log-file", "logging-dir", "config-logger-dir", "ckpt-convert-save"),
        *("wandb-project", "wandb-exp-name", "wandb-save-dir", "wandb-entity"),
        *("profile-dir", "one-logger-run-name", "data-cache-path"),
    )
)


def starts(argv: Sequence[str]) -> bool:
    known = {word.partition("=")[0] for word in argv} & ARGUMENTS.keys()
    return len(known) >= MIN_FLAGS


def read_command(argv: Sequence[str], request: ImportRequest, stays: frozenset[str]) -> Reading:
    """Reads an argument list. `stays`: names whose words remain in the list although the recipe has them."""
    reading = _with_last_batch(read(argv, world_size=request.ranks, stays=stays), argv)
    kept = (*reading.kept, *kept_packing(packing_flags(argv)))
    return replace(reading, kept=kept, notes=_by_version(reading, argv))


def _with_last_batch(reading: Reading, argv: Sequence[str]) -> Reading:
    """Sets the batch size that a batch schedule ends with; the schedule stays in the command."""
    schedule = schedule_of(argv)
    if schedule is None:
        return reading
    batch = last_batch(schedule)
    knobs = reading.knobs if batch is None else {**reading.knobs, "global_batch_size": batch}
    why = f"the batch is the trainer's own; bursts and estimates run {knobs.get('global_batch_size')}"
    return replace(reading, knobs=knobs, kept=(*reading.kept, Kept(words=f"{SCHEDULE} {schedule}", why=why)))


def read_log(text: str, request: ImportRequest) -> Reading:
    """Reads the arguments at the start of a log.

    They are values after validation, from which the command cannot be known.
    """
    values = logged_values(text)
    if not values:
        raise refused(request.file, "its argument dump is cut off", "name the log of rank 0 from its start")
    if padded := _PADDED.search(text):
        values["padded_vocab_size"] = int(padded[1])
    world = values.get("world_size")
    per_node = request.ranks_per_node or (min(8, world) if world else None)
    nodes = world // per_node if world and per_node and world % per_node == 0 else None
    return replace(
        _read_final(values),
        sizes=Sizes(nodes=nodes, gpus_per_node=per_node, tasks=world, gpu=_gpu_in(text)),
        reported_tflops=logged_tflops(text),
        notes=(
            "a log has no command: bursts run our own model (engine megatron); import the script for yours",
            *((f"{nodes} × {per_node} ranks are assumed: else give --gpus-per-node",) if nodes else ()),
        ),
    )


def read_settled(values: Mapping[str, Any], request: ImportRequest) -> Reading:
    """Reads the arguments recorded inside a trainer, for launchers that make them in Python and have no command
    line."""
    world = values.get("world_size")
    per_node = request.ranks_per_node or (min(8, world) if world else None)
    return replace(
        _read_final(values),
        sizes=Sizes(nodes=world // per_node if world and per_node else None, gpus_per_node=per_node, tasks=world),
        notes=("its launcher makes the arguments itself: bursts run our own model (engine megatron)",),
    )


def _read_final(values: Mapping[str, Any]) -> Reading:
    """Reads values after validation; keeps those that a recipe cannot express."""
    reading = read_values({**defaults(), **values}, world_size=values.get("world_size"))
    unread = (Kept(words=field, why=why) for field, why in reading.unread.items())
    return replace(reading, kept=(*unread, *kept_packing(packing_values(values))))


def _differences(
    argv: Sequence[str], stayed: Sequence[str], recipe: Recipe, world_size: int | None
) -> Mapping[str, Difference]:
    return differences(argv, with_recipe(stayed, recipe), world_size=world_size)


def _frozen(command: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name, _ in of_a_fork(command) if name in KNOBS)


def _by_version(reading: Reading, argv: Sequence[str]) -> tuple[str, ...]:
    """Returns notes on defaults that changed between releases and on which the command relies."""
    if not reading.knobs.get("use_megatron_fsdp") or "--data-parallel-sharding-strategy" in argv:
        return ()
    return (
        "--data-parallel-sharding-strategy is not written: no_shard up to 0.16.1, optim_grads_params today (taken)",
    )


def _gpu_in(text: str) -> str | None:
    names = {_gpu(name) for name in _GPU.findall(text)}
    return names.pop() if len(names) == 1 else None


def _gpu(text: str) -> str:
    return text.split()[1].lower()


READER = Reader(
    order=1,
    starts=starts,
    read_command=read_command,
    differences=_differences,
    log=Document(fits=has_arguments, read=read_log),
    settled=read_settled,
    checkout_version=checkout_version,
    frozen=_frozen,
    readable="a list of Megatron-LM's arguments, its log",
    left_by_runs="the log of rank 0 with Megatron-LM's arguments",
    program=("python", "pretrain_gpt.py"),
    whole_flags=frozenset({"--moe-layer-freq", "--pipeline-model-parallel-layout"}),
    tokenizer_flags=("--tokenizer-model", "--vocab-file", "--tokenizer-name-or-path"),
    unused=UNUSED,
)
