"""Measures the links between a recipe's nodes before anything is tuned: a minute at most, on ranks as a burst's."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from trainer.burst import Failure
from trainer.engines.megatron.engine import environment_of
from trainer.errors import ToolError
from trainer.launchers.open import open_launcher
from trainer.launchers.warm import start_ranks
from trainer.probe.links import Links
from trainer.recipe import Recipe

DEADLINE_S = 60.0
FOUND = "links.json"
UNSHARED = "is not seen on"  # in the words of a rank


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a probe: links, or why there are none. `seconds`: its whole time, with start-up and without
    queueing."""

    links: Links | None
    failure: Failure | None
    seconds: float


def probe(recipe: Recipe, *, home: Path, folder: Path) -> Probe:
    """`home` as of `open_launcher`, `folder` that of the probe alone. ToolError as of a burst: a node that does not see
    the folder, a queue that takes nothing."""
    launcher = open_launcher(recipe, home)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FOUND).unlink(missing_ok=True)
    began = time.monotonic()
    ranks = start_ranks(
        launcher,
        nodes=recipe.cluster.nodes,
        ranks_per_node=recipe.ranks_per_node,
        env=environment_of(recipe),
        folder=home / "probe",
        name=None if launcher.keeps_ranks else "probe",
        module="trainer.probe.worker",
    )
    try:
        result = ranks.run(folder, deadline_s=DEADLINE_S)
    finally:
        ranks.end()
    seconds = round(time.monotonic() - began - ranks.queued_s, 3)
    if result.failure is not None:
        return Probe(links=None, failure=result.failure, seconds=seconds)
    links = msgspec.json.decode((folder / FOUND).read_bytes(), type=Links)
    return Probe(links=links, failure=None, seconds=seconds)


def refuse_unshared(found: Probe) -> None:
    """Raises ToolError where a rank reports that it does not see what another wrote into the study's folder."""
    if found.failure is not None and UNSHARED in found.failure.evidence:
        raise ToolError(
            f"rank {found.failure.rank} does not see what another rank wrote: {found.failure.evidence}",
            hint="keep the study on a file system that all nodes mount (--study DIR)",
        )
