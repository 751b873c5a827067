"""Measures a recipe's cluster before anything is tuned, on ranks that start as a burst's: the links between its nodes,
clocks and folder, and the rows of a plan. A minute without rows, two at most with them.

`probe(recipe, home=…, folder=…)` measures links alone; with `rows` of `trainer.microbenchmarks.groups` those too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainer.burst import Failure
from trainer.engines.megatron.engine import environment_of
from trainer.errors import ToolError
from trainer.launchers.open import open_launcher
from trainer.launchers.warm import start_ranks
from trainer.microbenchmarks.group import PROBE_S
from trainer.microbenchmarks.row import Row
from trainer.microbenchmarks.shapes import probed_nodes
from trainer.probe.links import Links
from trainer.recipe import Recipe

DEADLINE_S = 60.0
FOUND, PLAN, MEASURED = "links.json", "plan.json", "rows.json"
LATE_S = 20.0  # after its deadline until a probe that does not end by itself is ended
UNSHARED = "is not seen on"  # in the words of a rank


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a probe on `ranks` ranks: links between several nodes, rows, or why there is neither. `seconds`: its
    whole time, with start-up and without queueing."""

    links: Links | None
    failure: Failure | None
    seconds: float
    ranks: int = 0
    rows: list[Row] = []


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The request to the ranks: rows of a recipe, in their order, and the seconds after a rank's start for them."""

    recipe: dict[str, Any]
    rows: list[Row]
    within_s: float


def probe(recipe: Recipe, *, home: Path, folder: Path, rows: Sequence[Row] = (), within_s: float = PROBE_S) -> Probe:
    """`home` as of `open_launcher`, `folder` that of the probe alone. With `rows` on as many nodes as these need, else
    on all. A rank that fails ends the probe, whose rows up to then count. ToolError as of a burst: a node that does not
    see the folder, a queue that takes nothing."""
    launcher = open_launcher(recipe, home)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (FOUND, PLAN, MEASURED):
        (folder / name).unlink(missing_ok=True)
    if rows:
        plan = Plan(recipe=recipe.model_dump(mode="json"), rows=list(rows), within_s=within_s)
        (folder / PLAN).write_bytes(msgspec.json.encode(plan))
    nodes = probed_nodes(recipe) if rows else recipe.cluster.nodes
    began = time.monotonic()
    ranks = start_ranks(
        launcher,
        nodes=nodes,
        ranks_per_node=recipe.ranks_per_node,
        env=environment_of(recipe),
        folder=home / "probe",
        name=None if launcher.keeps_ranks else "probe",
        module="trainer.probe.worker",
    )
    try:
        result = ranks.run(folder, deadline_s=DEADLINE_S + (within_s + LATE_S if rows else 0.0))
    finally:
        ranks.end()
    seconds = round(time.monotonic() - began - ranks.queued_s, 3)
    return Probe(
        links=_read(folder / FOUND, Links) if result.failure is None or rows else None,
        failure=result.failure,
        seconds=seconds,
        ranks=nodes * recipe.ranks_per_node,
        rows=_read(folder / MEASURED, list[Row]) or [],
    )


def _read(path: Path, kind: Any) -> Any:
    return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None


def refuse_unshared(found: Probe) -> None:
    """Raises ToolError where a rank reports that it does not see what another wrote into the study's folder."""
    if found.failure is not None and UNSHARED in found.failure.evidence:
        raise ToolError(
            f"rank {found.failure.rank} does not see what another rank wrote: {found.failure.evidence}",
            hint="keep the study on a file system that all nodes mount (--study DIR)",
        )
