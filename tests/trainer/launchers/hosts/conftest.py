"""Ranks on two hosts of this machine, and nothing of theirs left at the end of each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launchers.hosts.machines import HOSTS, Hosts, why_not
from tests.trainer.launchers.slurm.network import Network
from tests.trainer.launchers.two_nodes import processes_of, starting, until
from trainer.launchers.hosts.launcher import HostsLauncher
from trainer.launchers.processes import with_mark
from trainer.launchers.warm import WarmRanks
from trainer.recipe.launching import HostsSettings


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if reason := why_not():
        pytest.skip(reason)
    network = Network(nodes=HOSTS, tag=str(100_000 + os.getpid()))  # distinct from the tags of Slurm tests
    found = Hosts(folder=tmp_path_factory.mktemp("hosts"), network=network)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def launch_on_hosts(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., WarmRanks]]:
    """Starts ranks of the fake worker, two on each of two hosts."""
    yield from starting(partial(launcher_at, hosts, tmp_path), tmp_path, await_end)


def launcher_at(hosts: Hosts, folder: Path, **settings: Any) -> HostsLauncher:
    asked: dict[str, Any] = {"hosts": tuple(hosts.names), "ssh": hosts.ssh, **settings}
    return HostsLauncher(settings=HostsSettings(**asked), home=folder / "home")


def await_end(ranks: WarmRanks) -> None:
    """Waits for the end of every process of the start, on both hosts: both are this machine."""
    until(lambda: not with_mark(processes_of(ranks).mark))
