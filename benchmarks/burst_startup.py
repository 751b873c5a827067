"""Measures how long starting the ranks of a burst takes, by launcher: the same four CPU ranks, cold and warm.

    python -m benchmarks.burst_startup [WAY…]

Ways: local (four ranks of this machine), allocation (one step of a Slurm job, two nodes), per-burst (one job per
burst), hosts (two hosts over ssh). Needs root, Slurm and sshd. Start-up is a burst's wall-clock time without building
the model and its steps: of the first burst, and the median of the next, for which all ways but per-burst keep their
ranks.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.random_kills import recipe as small_recipe
from tests.trainer.launchers.hosts import machines
from tests.trainer.launchers.slurm.cluster import Cluster, why_not
from tests.trainer.launchers.slurm.network import Network
from trainer.burst import Burst
from trainer.engines.megatron.engine import MegatronEngine
from trainer.recipe import Recipe

BURSTS = 3


@contextmanager
def local(folder: Path) -> Iterator[tuple[Any, int]]:
    yield "local", 1


@contextmanager
def allocation(folder: Path) -> Iterator[tuple[Any, int]]:
    with _slurm(folder) as cluster, cluster.allocation(memory_mib=6000) as variables:
        os.environ.update(variables)
        yield "slurm", 2
        for name in variables:
            os.environ.pop(name)


@contextmanager
def per_burst(folder: Path) -> Iterator[tuple[Any, int]]:
    with _slurm(folder) as cluster:
        os.environ["SLURM_CONF"] = str(cluster.conf)
        yield {"slurm": {"job": "per-burst"}}, 2


@contextmanager
def hosts(folder: Path) -> Iterator[tuple[Any, int]]:
    found = machines.Hosts(folder=folder, network=Network(nodes=machines.HOSTS))
    try:
        found.start()
        yield {"hosts": found.names, "ssh": list(found.ssh)}, 2
    finally:
        found.stop()


@contextmanager
def _slurm(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder=folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


WAYS: dict[str, Callable[[Path], Any]] = {
    "local": local,
    "allocation": allocation,
    "per-burst": per_burst,
    "hosts": hosts,
}


def startups(way: str) -> list[float]:
    """Returns the start-up seconds of each burst; the first is on fresh ranks."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "way").mkdir()
        with WAYS[way](folder / "way") as (launcher, nodes):
            base = recipe(launcher, nodes)
            engine = MegatronEngine(folder / "engine")
            try:
                for number in range(1, BURSTS + 1):
                    started = time.monotonic()
                    outcome = engine.run(Burst(number=number, recipe=base, folder=folder / f"{number:04d}"))
                    assert outcome.failure is None, outcome.failure
                    steps = base.burst.warmup_steps + base.burst.measure_steps
                    spent = outcome.setup_s + steps * median(outcome.step_us) / 1e6
                    found.append(time.monotonic() - started - spent)
            finally:
                engine.close()
    return found


def recipe(launcher: Any, nodes: int) -> Recipe:
    data = small_recipe("slurm")
    data["cluster"] |= {"nodes": nodes, "gpus_per_node": 4 // nodes}
    data["burst"] |= {"launcher": launcher, "trace_steps": 0}
    return Recipe.model_validate(data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    asked = parser.parse_args()
    if reason := why_not() or machines.why_not():
        print(f"not run: {reason}")
        return 1
    table = Table("way", "first burst, s", "the next, s", show_edge=False)
    for way in asked.ways:
        first, *more = startups(way)
        table.add_row(way, f"{first:.1f}", f"{median(more):.1f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
