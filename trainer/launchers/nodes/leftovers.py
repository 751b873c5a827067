"""Ends processes of a tuner that is gone on nodes that are reached only through the shared folder, and waits for
that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from trainer.launchers.mailbox import write_whole
from trainer.launchers.nodes import folder
from trainer.launchers.nodes.keeper import LEASE_S

_POLL_S = 0.1
_GONE_S = LEASE_S + 10.0  # a live keeper ends by itself in this time


def end_leftovers(home: Path) -> None:
    """Asks every earlier start of the study to stop and waits for its keepers, at most `_GONE_S`.

    Later calls do not wait again for a keeper that did not answer.
    """
    left = [control for control in _controls(home) if not folder.stop_path(control).exists()]
    for control in left:
        write_whole(folder.stop_path(control), b"")
    give_up = time.monotonic() + _GONE_S
    while any(_runs(control) for control in left) and time.monotonic() < give_up:
        time.sleep(_POLL_S)


def _controls(home: Path) -> Iterator[Path]:
    for path in home.glob("**/start.json"):
        yield path.parent


def _runs(control: Path) -> bool:
    """Returns whether a keeper that reported its node has not reported its end."""
    start = folder.read(folder.start_path(control), folder.Start)
    started = folder.started_nodes(control, start.nodes) if start else ()
    return any(not folder.node_end_path(control, each.number).exists() for each in started)
