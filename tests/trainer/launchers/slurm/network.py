"""A network between the nodes of the tests' Slurm, or between hosts for ssh: a namespace each, joined by a bridge.

Every link is as slow as asked. Needs root, ip and tc. The nodes share this machine's files, and nothing of each other's
network.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass, field

from tests.conftest import HANG_S

_QUEUE = ("burst", "64kb", "latency", "400ms")  # arguments of the token bucket
_LISTEN = """import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
listener.accept()"""
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()"


class NotJoinedError(RuntimeError):
    """The machine keeps its namespaces apart: what wants a network between them cannot run on it."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """`rate` of each node's link, in either direction, as tc says it ("40mbit"); None: as fast as the kernel copies.
    `processors`: those of each node, as taskset says them; none given, they share all of this machine's."""

    nodes: int
    rate: str | None = None
    processors: tuple[str, ...] = ()
    tag: str = field(
        default_factory=lambda: str(os.getpid())
    )  # part of the interfaces' names, which have at most 15 characters

    @property
    def controller(self) -> str:
        return f"{self._prefix}.254"

    def address(self, node: int) -> str:
        """Returns the address of node 1, 2, …"""
        return f"{self._prefix}.{node}"

    def inside(self, node: int) -> list[str]:
        """Returns the words before a command that run it on the node. `ip netns exec` would hide the cgroups."""
        own = ["taskset", "-c", self.processors[node - 1]] if self.processors else []
        return ["nsenter", f"--net=/run/netns/{self._space(node)}", *own]

    @property
    def _prefix(self) -> str:
        """Returns the prefix of a subnet: two networks never have one tag, and close tags differ here."""
        high, low = divmod(int(self.tag), 250)
        return f"10.{64 + high % 128}.{low + 1}"

    @property
    def _bridge(self) -> str:
        return f"mb{self.tag}"

    def _space(self, node: int) -> str:
        return f"mn{self.tag}-{node}"

    def _wire(self, node: int) -> str:
        return f"mv{self.tag}-{node}"

    def start(self) -> None:
        self.stop()  # a killed run with the same number may have left its network
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.controller}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for node in range(1, self.nodes + 1):
            self._join(node)

    def _join(self, node: int) -> None:
        space, wire = self._space(node), self._wire(node)
        _ip("netns", "add", space)
        _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", wire, "master", self._bridge, "up")
        _ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", space, "link", "set", device, "up")
        if self.rate is not None:
            limit = ("root", "tbf", "rate", self.rate, *_QUEUE)
            _run(*self.inside(node), "tc", "qdisc", "add", "dev", "eth0", *limit)
            _run("tc", "qdisc", "add", "dev", wire, *limit)

    def joined(self) -> bool:
        """Returns whether node 1 reaches node 2: a firewall that also filters bridges separates all nodes."""
        server = subprocess.Popen(
            [*self.inside(2), sys.executable, "-c", _LISTEN, self.address(2)], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        reached = subprocess.run(
            [*self.inside(1), sys.executable, "-c", _CONNECT, self.address(2), port],
            capture_output=True,
            timeout=HANG_S,
        )
        server.kill()
        server.communicate()
        return reached.returncode == 0

    def stop(self) -> None:
        """Removes all of the network; missing parts are skipped."""
        for node in range(1, self.nodes + 1):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("link", "del", self._wire(node))
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._space(node))
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=HANG_S)
