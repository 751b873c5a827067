"""A command of Megatron-LM, its log, or a file of its arguments, as parts of a recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.importing.found import Asked, Found, Kept, Started
from trainer.command_line.launchers import Sizes
from trainer.command_line.megatron_lm.arguments import ARGUMENTS, defaults
from trainer.command_line.megatron_lm.batch_schedule import SCHEDULE, last_batch, schedule_of
from trainer.command_line.megatron_lm.log import logged_values
from trainer.command_line.megatron_lm.read import Kept as KeptWords
from trainer.command_line.megatron_lm.read import Reading, read, read_values
from trainer.errors import BadInputError, Problem, refused
from trainer.recipe.hardware import known_hardware

LEAST_FLAGS = 2  # that Megatron-LM knows, for a command to be one of its
_PADDED = re.compile(r"padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (\d+)\)")
_GPU = re.compile(r"NVIDIA (?:A100|H100|H200|H800|B200|B300|GB200|GB300)[\w -]*")


def is_megatron_lm(started: Started) -> bool:
    known = {word.partition("=")[0] for word in started.argv} & ARGUMENTS.keys()
    return len(known) >= LEAST_FLAGS


def from_command(started: Started, asked: Asked, *, what: str, stays: frozenset[str] = frozenset()) -> Found:
    """What the command says, its argument list divided. `stays`: names whose words are left in it all the same."""
    world = world_size(started.sizes, asked)
    reading = _with_last_batch(read(started.argv, world_size=world, stays=stays), started.argv)
    _refuse_missing(reading, asked, started)
    return Found(
        what=what,
        model=reading.model,
        knobs=reading.knobs,
        kind="megatron-lm" if started.program else None,
        command=(*started.program, *reading.rest),
        passed=_passed(reading),
        own=tuple(" ".join(words) for words in reading.unknown),
        kept=tuple(Kept(words=" ".join(each.words), why=each.why) for each in reading.kept),
        env=started.env,
        sizes=started.sizes,
        launchers=started.launchers,
        headers=started.headers,
        container=started.container,
        setup=started.setup,
        expand=started.expand,
        problems=started.problems,
        notes=(*started.notes, *_by_version(reading, started)),
    )


def _with_last_batch(reading: Reading, argv: Sequence[str]) -> Reading:
    """The same with the batch that a schedule of batches ends with; the schedule stays in the command."""
    schedule = schedule_of(argv)
    if schedule is None:
        return reading
    batch = last_batch(schedule)
    knobs = reading.knobs if batch is None else {**reading.knobs, "global_batch_size": batch}
    why = f"the batch is the trainer's own; bursts and estimates run {knobs.get('global_batch_size')}"
    return replace(reading, knobs=knobs, kept=(*reading.kept, KeptWords(words=(SCHEDULE, schedule), why=why)))


def from_log(text: str, asked: Asked) -> Found:
    """What the dump at the start of a log says: values after validation, so their command cannot be known."""
    values = logged_values(text)
    if not values:
        raise refused(asked.file, "its argument dump is cut off", "name the log of rank 0 from its start")
    if padded := _PADDED.search(text):
        values["padded_vocab_size"] = int(padded[1])
    world = values.get("world_size")
    reading = read_values({**defaults(), **values}, world_size=world)
    _refuse_missing(reading, asked)
    unread = tuple(Kept(words=field, why=why) for field, why in reading.unread.items())
    per_node = asked.gpus_per_node or (min(8, world) if world else None)
    nodes = world // per_node if world and per_node and world % per_node == 0 else None
    return Found(
        what="a log of Megatron-LM",
        model=reading.model,
        knobs=reading.knobs,
        kept=unread,
        sizes=Sizes(nodes=nodes, gpus_per_node=per_node, tasks=world, gpu=_gpu_in(text)),
        notes=(
            "a log has no command: bursts run our own model (engine megatron); import the script for yours",
            *((f"{world} ranks are taken as {nodes} nodes of {per_node}: else give --gpus-per-node",) if nodes else ()),
        ),
    )


def from_values(values: Mapping[str, Any], asked: Asked) -> Found:
    """What the arguments say that a trainer had inside: its launcher makes them, and no command line has them."""
    world = values.get("world_size")
    reading = read_values({**defaults(), **values}, world_size=world)
    _refuse_missing(reading, asked)
    per_node = asked.gpus_per_node or (min(8, world) if world else None)
    return Found(
        what="the arguments of a recorded start of Megatron-LM",
        model=reading.model,
        knobs=reading.knobs,
        kept=tuple(Kept(words=field, why=why) for field, why in reading.unread.items()),
        sizes=Sizes(nodes=world // per_node if world and per_node else None, gpus_per_node=per_node, tasks=world),
        notes=("its launcher makes the arguments itself: bursts run our own model (engine megatron)",),
    )


def world_size(sizes: Sizes, asked: Asked) -> int | None:
    nodes = asked.nodes or sizes.nodes
    per_node = asked.gpus_per_node or sizes.gpus_per_node
    if per_node is None and asked.gpu in known_hardware():
        per_node = known_hardware()[asked.gpu].gpus_per_node
    return nodes * per_node if nodes and per_node else sizes.tasks


def _refuse_missing(reading: Reading, asked: Asked, started: Started | None = None) -> None:
    if reading.missing:
        flags = ", ".join(reading.missing)
        notes = () if started is None else started.notes
        for note in notes:
            asked.tell(note)
        problems = () if started is None else started.problems
        missing = Problem(
            where=asked.file,
            what=f"Megatron-LM's {flags} is in none of its arguments",
            hint="name the file that has all of them" + (", or --set what was empty" if notes else ""),
        )
        raise BadInputError(*problems, missing)
    if "precision" in reading.unread:
        raise refused(asked.file, f"precision: {reading.unread['precision']}", "a recipe trains in one of these")


def _passed(reading: Reading) -> tuple[str, ...]:
    unknown = {words[0].partition("=")[0] for words in reading.unknown}
    kept = {each.words[0] for each in reading.kept}
    flags = (word.partition("=")[0] for word in reading.rest if word.startswith("--"))
    return tuple(dict.fromkeys(flag for flag in flags if flag not in unknown | kept))


def _by_version(reading: Reading, started: Started) -> tuple[str, ...]:
    """Defaults that changed between releases, where they act and are not written."""
    if not reading.knobs.get("use_megatron_fsdp") or "--data-parallel-sharding-strategy" in started.argv:
        return ()
    return (
        "--data-parallel-sharding-strategy is not written: no_shard up to 0.16.1, optim_grads_params today (taken)",
    )


def _gpu_in(text: str) -> str | None:
    names = {_gpu(name) for name in _GPU.findall(text)}
    return names.pop() if len(names) == 1 else None


def _gpu(text: str) -> str:
    return text.split()[1].lower()
