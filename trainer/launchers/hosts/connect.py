"""Runs one ssh to each host until all have ended; `supervise` runs this for launcher `hosts`.

`python -m trainer.launchers.hosts.connect <control folder>` reads the hosts there. A host whose ssh fails is named in
our own log; the others get a moment to write their reports, then their connections are closed, which ends their
keepers.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec

from trainer.launchers.nodes import folder

_LOOK_S = 0.1
_OTHERS_S = 8.0  # time for other keepers to see the failure and to record how their ranks ended


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    argv: list[str]


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    to: list[Connection]


def connections_path(control: Path) -> Path:
    return control / "connections.json"


def lost(host: str, code: int) -> str:
    """Returns the message about a host whose ssh failed: 255 is ssh's own failure, other codes are the keeper's."""
    return f"moe-autotune: host {host} is lost: ssh ended with {code}"


def main(control: Path) -> int:
    found = folder.read(connections_path(control), Connections)
    assert found is not None
    running = {each.host: subprocess.Popen(each.argv, stdin=subprocess.DEVNULL) for each in found.to}
    failed, give_up = 0, float("inf")
    while running and time.monotonic() < give_up:
        for host, ssh in list(running.items()):
            code = ssh.poll()
            if code is None:
                continue
            del running[host]
            if code:
                print(lost(host, code), flush=True)
                failed, give_up = code, min(give_up, time.monotonic() + _OTHERS_S)
        time.sleep(_LOOK_S)
    for ssh in running.values():
        ssh.terminate()
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
