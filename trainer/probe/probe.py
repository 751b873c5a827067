"""Measures a recipe's cluster before tuning, on ranks started as for a burst: the links between its nodes, clocks and
shared folder, and the rows of a plan. Takes up to one minute without rows, two with them.

`probe(recipe, home=…, folder=…)` measures links only; with `rows` of `trainer.microbenchmarks.groups` those too.
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
from trainer.launchers.extensions import extensions_environment
from trainer.launchers.open import open_launcher
from trainer.launchers.warm import start_ranks
from trainer.microbenchmarks.group import GROUP_S, PROBE_S
from trainer.microbenchmarks.row import Row
from trainer.microbenchmarks.shapes import probed_nodes
from trainer.probe.links import Links
from trainer.recipe import Recipe

DEADLINE_S = 60.0
FOUND, PLAN, MEASURED = "links.json", "plan.json", "rows.json"
LATE_S = 20.0  # seconds after its deadline until a probe that does not end by itself is killed
UNSHARED = "is not seen on"  # part of a rank's message


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a probe on `ranks` ranks: links between several nodes and rows, as far as they were measured, and the
    failure that ended it.

    `seconds`: its total time, start-up included, queueing excluded.
    """

    links: Links | None
    failure: Failure | None
    seconds: float
    ranks: int = 0
    rows: list[Row] = []


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the ranks: rows of a recipe in order, to be measured within `within_s` seconds of a rank's start, each
    group within `group_s`."""

    recipe: dict[str, Any]
    rows: list[Row]
    within_s: float
    group_s: float


def probe(
    recipe: Recipe,
    *,
    home: Path,
    folder: Path,
    rows: Sequence[Row] = (),
    within_s: float = PROBE_S,
    group_s: float = GROUP_S,
) -> Probe:
    """Runs a probe in `folder`; `home` is that of `open_launcher`.

    With `rows` it uses as many nodes as they need, else all. A rank that fails ends the probe; rows measured before are
    kept. Raises ToolError as a burst does: a node does not see the folder, the queue rejects the job.
    """
    launcher = open_launcher(recipe, home)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (FOUND, PLAN, MEASURED):
        (folder / name).unlink(missing_ok=True)
    if rows:
        plan = Plan(recipe=recipe.model_dump(mode="json"), rows=list(rows), within_s=within_s, group_s=group_s)
        (folder / PLAN).write_bytes(msgspec.json.encode(plan))
    nodes = probed_nodes(recipe) if rows else recipe.cluster.nodes
    started, environment = time.monotonic(), environment_of(recipe)
    ranks = start_ranks(
        launcher,
        nodes=nodes,
        ranks_per_node=recipe.ranks_per_node,
        env=extensions_environment(home, environment) | environment,
        folder=home / "probe",
        name=None if launcher.keeps_ranks else "probe",
        module="trainer.probe.worker",
    )
    try:
        result = ranks.run(folder, deadline_s=DEADLINE_S + (within_s + LATE_S if rows else 0.0))
    finally:
        ranks.end()
    seconds = round(time.monotonic() - started - ranks.queued_s, 3)
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
    """Raises ToolError if a rank reports that it does not see a file that another rank wrote to the study's folder."""
    if found.failure is not None and UNSHARED in found.failure.evidence:
        raise ToolError(
            f"rank {found.failure.rank} does not see what another rank wrote: {found.failure.evidence}",
            hint="keep the study on a file system that all nodes mount (--study DIR)",
        )
