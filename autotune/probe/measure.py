"""Probes the cluster of a recipe without a study: on real ranks, or by the simulated engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from autotune.probe.document import ProbeDocument, document_of
from autotune.tuning.environment import environment
from trainer.microbenchmarks.row import Row
from trainer.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ProbedCluster:
    """The rows of a probe, and its document."""

    rows: list[Row]
    document: ProbeDocument


def probe_recipe(recipe: Recipe, *, seed: int) -> ProbedCluster:
    """Probes a recipe's cluster. Raises ToolError if ranks cannot be started."""
    if recipe.burst.engine == "simulated":
        return _simulated(recipe, seed=seed)
    with TemporaryDirectory(prefix="moe-probe-") as folder:
        return _measured(recipe, Path(folder))


def _simulated(recipe: Recipe, *, seed: int) -> ProbedCluster:
    from trainer.engines.simulated.probe import simulate_probe
    from trainer.microbenchmarks.groups import rows_of

    simulated = simulate_probe(recipe, rows_of(recipe), seed=seed)
    document = document_of(recipe, simulated.rows, ranks=simulated.ranks, seconds=simulated.seconds)
    return ProbedCluster(rows=simulated.rows, document=document)


def _measured(recipe: Recipe, folder: Path) -> ProbedCluster:
    from trainer.microbenchmarks.groups import rows_of
    from trainer.probe.probe import probe

    found = probe(recipe, home=folder / "engine", folder=folder / "probe", rows=rows_of(recipe))
    document = document_of(
        recipe,
        found.rows,
        ranks=found.ranks,
        seconds=found.seconds,
        links=found.links,
        failure=found.failure,
        environment=environment(),
    )
    return ProbedCluster(rows=found.rows, document=document)
