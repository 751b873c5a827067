"""A real Slurm for the tests that want one, and nothing of ours left on it at the end of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launchers.slurm.cluster import Cluster, why_not
from tests.trainer.launchers.two_nodes import processes_of, starting
from trainer.launchers.processes import with_mark
from trainer.launchers.slurm.launcher import SlurmLauncher
from trainer.launchers.slurm.monitor import SlurmMonitor
from trainer.launchers.warm import WarmRanks
from trainer.recipe.launching import SlurmSettings


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    slurm = Cluster(folder=tmp_path_factory.mktemp("slurm"))
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


@pytest.fixture
def allocated(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """This process is inside an allocation of both nodes."""
    with cluster.allocation() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield cluster


@pytest.fixture
def reachable(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """This process is on a login node."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return cluster


@pytest.fixture
def launch_on_nodes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., WarmRanks]]:
    """Yields a function that starts ranks of the fake worker, two on each of two nodes; ends them after the test, while
    Slurm's programs still find the cluster."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))

    def gone(ranks: WarmRanks) -> None:
        assert left_of(ranks) == []

    yield from starting(partial(launcher_at, tmp_path / "home"), tmp_path, gone)


def launcher_at(home: Path, **settings: Any) -> SlurmLauncher:
    return SlurmLauncher(settings=SlurmSettings(**settings), home=home, limit_s=600.0, on_gpus=False)


def name_of(ranks: WarmRanks) -> str:
    """Returns the name that the ranks' step or job has in Slurm."""
    monitor = processes_of(ranks).monitor
    assert isinstance(monitor, SlurmMonitor)
    return monitor.name


def left_of(ranks: WarmRanks) -> list[object]:
    """Returns the live processes of the ranks' start on both nodes, which are this machine."""
    return list(with_mark(processes_of(ranks).mark))
