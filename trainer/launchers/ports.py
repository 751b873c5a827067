"""Chooses ports for torchrun's rendezvous, which starts to listen only seconds later."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

# range of ports that the kernel assigns to outgoing connections
_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000  # first port to use: the well-known ones are below
_MIN_PORTS = 1_000  # if fewer ports than this are below the kernel's range, a port in that range is used
_TRIES = 50


def free_port(address: str = "") -> int:
    """Returns a free port of this machine, on one address or on all.

    It is below the range that the kernel assigns, if there is room. If it is taken nevertheless, the failure is
    `infrastructure`.
    """
    end = _first_handed_out()
    drawn = random.SystemRandom().sample(range(_FIRST, end), _TRIES) if end - _FIRST > _MIN_PORTS else []
    with contextlib.closing(_listener(address, [*drawn, 0])) as listener:
        port: int = listener.getsockname()[1]
        return port


def _listener(address: str, ports: list[int]) -> socket.socket:
    """Returns a socket bound to the first free one of the ports; 0 lets the kernel choose."""
    for port in ports:
        listener = socket.socket()
        try:
            listener.bind((address, port))
        except OSError:
            listener.close()
        else:
            return listener
    raise OSError(f"no port of {address or 'this machine'} is free")


def _first_handed_out() -> int:
    try:
        return int(_HANDED_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
