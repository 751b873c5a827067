"""Probes the cluster of a study before its first burst: recorded in the journal, charged like a burst, and used by the
tuner."""

from __future__ import annotations

from autotune.check.legal import RANKS_HERE
from autotune.tuning.events import Probed
from autotune.tuning.study import Study
from policies.tuner.probe_allowance import probe_s
from trainer.engines.simulated.probe import simulate_probe
from trainer.microbenchmarks.group import PROBE_S
from trainer.microbenchmarks.groups import rows_of
from trainer.microbenchmarks.row import Row
from trainer.probe.probe import probe, refuse_unshared


def probe_before(study: Study, *, budget: int, max_gpu_hours: float | None, rows: bool) -> None:
    """Measures the cluster before the first burst and records it, unless that was done, the recipe disables it, or real
    ranks run proxies. With `rows`, runs the micro-benchmarks that fit into a twentieth of the study's cost; else, and
    on CPU ranks, only measures the links between nodes.

    Raises ToolError if the nodes share no folder.
    """
    recipe, known = study.recipe, study.journal.whole
    if known.finished or known.links is not None or known.rows or not recipe.burst.probe_links:
        return
    if recipe.tune.proxy_nodes is not None and recipe.burst.engine in RANKS_HERE:
        return  # a study with proxies may have fewer nodes than the recipe
    within_s = probe_s(recipe, budget=budget, max_gpu_hours=max_gpu_hours) if rows else None
    if recipe.burst.engine == "simulated":
        if within_s is not None:
            _simulate(study, within_s)
    elif recipe.burst.engine in RANKS_HERE and within_s is not None:
        _measure(study, rows_of(recipe), within_s)
    elif recipe.burst.engine in RANKS_HERE and recipe.cluster.nodes > 1:
        _measure(study, [], PROBE_S)


def _measure(study: Study, rows: list[Row], within_s: float) -> None:
    folders = {"home": study.folder / "engine", "folder": study.folder / "probe"}
    found = probe(study.recipe, **folders, rows=rows, within_s=within_s)
    refuse_unshared(found)
    study.journal.append(
        Probed(
            links=found.links,
            rows=tuple(found.rows),
            failure=found.failure,
            ranks=found.ranks,
            seconds=found.seconds,
        )
    )


def _simulate(study: Study, within_s: float) -> None:
    simulated = simulate_probe(study.recipe, rows_of(study.recipe), seed=study.seed, within_s=within_s)
    study.journal.append(
        Probed(links=None, rows=tuple(simulated.rows), ranks=simulated.ranks, seconds=simulated.seconds)
    )
