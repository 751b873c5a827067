"""Measures the rows of a probe's plan on one rank, together with all other ranks, one row after another.

All ranks measure each row, and their figures or errors are gathered before the next one: an error on one rank fails
that row only. Rank 0 writes the results after every row, so that a probe that is killed keeps them.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import msgspec

from trainer.engines.megatron.device import Device
from trainer.launchers import mailbox
from trainer.microbenchmarks.row import SLOW_CPU, SLOW_GPU, Row, failed, measured
from trainer.probe.bench import Bench
from trainer.probe.measures import measures
from trainer.probe.probe import MEASURED, PLAN, Plan
from trainer.recipe import Recipe

MAX_ERROR_CHARACTERS = 300  # most characters of an error
ALONE = ("compute", "host")  # groups with a figure of each rank alone: in a collective all ranks wait for the last one
NO_TIME = "no time was left"


def measure_plan(folder: Path, *, rank: int, world: int, device: Device, started_s: float) -> None:
    """Measures the plan in the folder, if there is one; `started_s` is when this rank started, by the monotonic
    clock."""
    if not (folder / PLAN).exists():
        return
    plan = msgspec.json.decode((folder / PLAN).read_bytes(), type=Plan)
    bench = Bench(Recipe.model_validate(plan.recipe), device, rank=rank, world=world)
    found: list[Row] = []
    group, group_ends_s = "", 0.0
    for row in plan.rows:
        if row.group != group:
            group, group_ends_s = row.group, time.monotonic() + plan.group_s
        if bench.out_of_time(min(group_ends_s, started_s + plan.within_s)):
            found.append(failed(row, NO_TIME))
        else:
            found.append(_measure(bench, row))
        if rank == 0:
            mailbox.write_whole(folder / MEASURED, msgspec.json.encode(found))


def _measure(bench: Bench, row: Row) -> Row:
    repeats, error = None, None
    try:
        repeats = measures()[row.kind](bench, row)
    except Exception as caught:  # a failing part: the probe continues without it
        error = f"{type(caught).__name__}: {caught}".splitlines()[0][:MAX_ERROR_CHARACTERS]
    gc.collect()
    gc.freeze()  # what is left was imported or stays: collecting the next row's garbage need not search it
    every: list[Any] = [None] * bench.world
    bench.dist.all_gather_object(every, (repeats, error))
    if row.unit == "works" and error is not None:
        return msgspec.structs.replace(measured(row, {0: [0.0]}), failure=error)
    errors = [text for _, text in every if text]
    by_rank = {rank: each for rank, (each, _) in enumerate(every) if each}
    if errors:
        return failed(row, errors[0])
    slow = SLOW_CPU if bench.on_cpu else SLOW_GPU
    return measured(row, by_rank, slow=slow if row.group in ALONE and row.kind != "garbage" else None)
