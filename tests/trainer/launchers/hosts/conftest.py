"""Ranks on two hosts of this machine, and nothing of theirs left at the end of each test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launchers.hosts.machines import HOSTS, Hosts, why_not
from tests.trainer.launchers.slurm.network import Network
from trainer.launchers.hosts.launcher import HostsLauncher
from trainer.launchers.nodes.processes import NodesProcesses
from trainer.launchers.processes import with_mark
from trainer.launchers.warm import WarmRanks, start_ranks
from trainer.recipe.launching import HostsSettings

WORKERS = Path(__file__).parents[1]  # where fake_worker is


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if reason := why_not():
        pytest.skip(reason)
    network = Network(nodes=HOSTS, tag=str(100_000 + os.getpid()))  # beside that of a Slurm
    found = Hosts(folder=tmp_path_factory.mktemp("hosts"), network=network)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def launch_on_hosts(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., WarmRanks]]:
    """Starts ranks of the fake worker, two on each of two hosts."""
    started: list[WarmRanks] = []

    def start(*, nodes: int = 2, **settings: Any) -> WarmRanks:
        ranks = start_ranks(
            launcher_at(hosts, tmp_path, **settings),
            nodes=nodes,
            ranks_per_node=2,
            env={"PYTHONPATH": str(WORKERS)},
            folder=tmp_path / "home/ranks",
            module="fake_worker",
        )
        started.append(ranks)
        return ranks

    yield start
    for ranks in started:
        ranks.end()
        await_end(ranks)


def launcher_at(hosts: Hosts, folder: Path, **settings: Any) -> HostsLauncher:
    asked = {"hosts": tuple(hosts.names), "ssh": hosts.ssh, **settings}
    return HostsLauncher(settings=HostsSettings(**asked), home=folder / "home")


def mark_of(ranks: WarmRanks) -> str:
    assert isinstance(ranks.processes, NodesProcesses)
    return ranks.processes.mark


def await_end(ranks: WarmRanks, within_s: float = 60.0) -> None:
    """Of every process of the start, on either host: both are this machine."""
    give_up = time.monotonic() + within_s
    while with_mark(mark_of(ranks)):
        assert time.monotonic() < give_up
        time.sleep(0.1)
