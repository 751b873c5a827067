"""Finds the addresses by which the nodes of a start reach each other."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915  # linux/sockios.h


def address_of(interface: str) -> str | None:
    """Returns the interface's first IPv4 address; None if it has none on this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            found = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
        except OSError:
            return None
    return socket.inet_ntoa(found[20:24])


def interface_with(address: str) -> str | None:
    """Returns the interface whose first IPv4 address is this one; None if there is none."""
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if address_of(name) == address), None)


def address_towards(other: str) -> str:
    """Returns this machine's address on the route to another one; if there is no route, or it leads back to this
    machine, the address of its host name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((other, 9))  # sends nothing: the kernel picks the route
            found: str = asking.getsockname()[0]
        except OSError:
            found = "127.0.0.1"
    return found if not found.startswith("127.") else _address_of_name(found)


def _address_of_name(otherwise: str) -> str:
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return otherwise
    return otherwise if found.startswith("127.") else found
