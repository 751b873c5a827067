"""One ssh to each host, until all have ended: what `supervise` runs for launcher `hosts`.

`python -m trainer.launchers.hosts.connect <control folder>` reads there whom to connect to. A host whose ssh ends
badly is named in our own log; the others get a moment to say what they saw, then their connections end, and with a
connection its keeper.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec

from trainer.launchers.nodes import folder

_LOOK_S = 0.1
_OTHERS_S = 8.0  # for other keepers to see the failure and to write down how their ranks ended


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    argv: list[str]


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    to: list[Connection]


def connections_path(control: Path) -> Path:
    return control / "connections.json"


def lost(host: str, code: int) -> str:
    """Returns the message on a host whose ssh ended badly: 255 is ssh's own failure, other codes are the keeper's."""
    return f"moe-autotune: host {host} is lost: ssh ended with {code}"


def main(control: Path) -> int:
    found = folder.read(connections_path(control), Connections)
    assert found is not None
    running = {each.host: subprocess.Popen(each.argv, stdin=subprocess.DEVNULL) for each in found.to}
    worst, give_up = 0, float("inf")
    while running and time.monotonic() < give_up:
        for host, ssh in list(running.items()):
            code = ssh.poll()
            if code is None:
                continue
            del running[host]
            if code:
                print(lost(host, code), flush=True)
                worst, give_up = code, min(give_up, time.monotonic() + _OTHERS_S)
        time.sleep(_LOOK_S)
    for ssh in running.values():
        ssh.terminate()
    return worst


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
