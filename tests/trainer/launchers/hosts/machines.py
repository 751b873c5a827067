"""Two hosts of this machine: network namespaces of their own, a real sshd in each."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import HANG_S
from tests.trainer.launchers.slurm.network import Network

HOSTS = 2


def why_not() -> str | None:
    """Returns why no hosts can be made here; None if they can."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in ("sshd", "ssh", "ip", "nsenter") if shutil.which(name, path=path) is None]
    if missing:
        return f"without {', '.join(missing)}"
    return None if os.geteuid() == 0 else "without root, which network namespaces need"


@dataclass(kw_only=True)
class Hosts:
    """Two hosts with an sshd each, named h1 and h2 in `config`, which ssh reads."""

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
            subprocess.run(command, check=True, timeout=HANG_S)
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
        subprocess.run([*self.network.inside(number + 1), sshd, "-f", str(conf)], check=True, timeout=HANG_S)
        give_up = time.monotonic() + HANG_S
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
