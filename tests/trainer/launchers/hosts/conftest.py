"""Two hosts of this machine: network namespaces of their own, a real sshd in each."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.launchers.slurm.network import Network
from trainer.launchers.hosts.launcher import HostsLauncher
from trainer.launchers.nodes.processes import NodesProcesses
from trainer.launchers.processes import with_mark
from trainer.launchers.warm import WarmRanks, start_ranks
from trainer.recipe.launching import HostsSettings

WORKERS = Path(__file__).parents[1]  # where fake_worker is
HOSTS = 2
_UP_S = 30.0


def why_not() -> str | None:
    """Why there can be no such hosts here; None if they can."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in ("sshd", "ssh", "ip", "nsenter") if shutil.which(name, path=path) is None]
    if missing:
        return f"without {', '.join(missing)}"
    return None if os.geteuid() == 0 else "without root, which network namespaces need"


@dataclass(kw_only=True)
class Hosts:
    """Named h1 and h2 in `config`, which ssh is told of."""

    folder: Path
    network: Network

    @property
    def names(self) -> list[str]:
        return [f"h{number + 1}" for number in range(HOSTS)]

    @property
    def addresses(self) -> list[str]:
        return [self.network.address(number + 1) for number in range(HOSTS)]

    @property
    def ssh(self) -> tuple[str, ...]:
        return ("-F", str(self.folder / "config"))

    def start(self) -> None:
        self.network.start()
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("host", "user"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)]
            subprocess.run(command, check=True, timeout=30)
        shutil.copy(self.folder / "user.pub", self.folder / "authorized")
        (self.folder / "config").write_text(
            "".join(
                f"Host {name}\n  HostName {address}\n  User root\n  IdentityFile {self.folder}/user\n"
                "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
                for name, address in zip(self.names, self.addresses, strict=True)
            )
        )
        for number in range(HOSTS):
            self.start_sshd(number)

    def start_sshd(self, number: int) -> None:
        conf = self.folder / f"sshd{number}.conf"
        conf.write_text(
            f"Port 22\nHostKey {self.folder}/host\nAuthorizedKeysFile {self.folder}/authorized\nStrictModes no\n"
            f"PidFile {self.folder}/sshd{number}.pid\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n"
        )
        sshd = shutil.which("sshd", path="/usr/sbin:/sbin:/usr/bin")
        assert sshd is not None
        subprocess.run([*self.network.inside(number + 1), sshd, "-f", str(conf)], check=True, timeout=30)
        give_up = time.monotonic() + _UP_S
        while not _answers(self.addresses[number]):
            assert time.monotonic() < give_up
            time.sleep(0.1)

    def stop(self) -> None:
        for path in self.folder.glob("sshd*.pid"):
            os.kill(int(path.read_text()), 15)
        self.network.stop()


def _answers(address: str) -> bool:
    try:
        socket.create_connection((address, 22), timeout=1.0).close()
    except OSError:
        return False
    return True


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
