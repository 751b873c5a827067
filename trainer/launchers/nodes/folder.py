"""Files in the control folder of a start on several nodes, in addition to the ranks' own (see `mailbox`).

The tuner's side writes `start.json` (the command), `lease` (a count that grows while it lives), `stop` (end now),
`stacks-<i>.json` (ranks asked for their stacks) and `module-<i>.json` (a module to run on every node), i = 0, 1, …. The
keeper of node n writes `node<n>.json` when it has started, `node<n>.oom` when the kernel kills for lack of memory,
`stacks-<i>.node<n>` and `module-<i>.node<n>` as answers, `rank<r>.end` for each rank that it saw end, and `node<n>.end`
last; its agent's log and the ranks' outputs are in `node<n>/`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from trainer.launchers.mailbox import write_whole

Note = TypeVar("Note", bound=msgspec.Struct)


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The command that every node's keeper runs.

    `token` proves that a keeper reads this same folder. `outlives_s`: None if everything ends with the tuner; else how
    many seconds from the keeper's start it may run, with or without a tuner.
    """

    token: str
    nodes: int
    ranks_per_node: int
    argv: list[str]
    env: dict[str, str]
    python: str
    interface: str | None = None
    outlives_s: float | None = None


class KeeperStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a node's keeper. `address` and `port` are those at which ranks of other nodes reach this node."""

    number: int
    host: str
    job: str
    step: str
    address: str
    port: int
    at_s: float = 0.0  # time.time() of the node


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rank, or of a node's agent. `code`: negative is a signal; None if unknown, or if we ended it."""

    code: int | None
    at_s: float  # time.time() of the node when it was last seen alive


class StacksAsked(msgspec.Struct, frozen=True, kw_only=True):
    ranks: list[int]


class StacksAnswer(msgspec.Struct, frozen=True, kw_only=True):
    asked: list[int]
    stopped: list[int]


class ModuleAsked(msgspec.Struct, frozen=True, kw_only=True):
    module: str
    words: list[str]


def start_path(control: Path) -> Path:
    return control / "start.json"


def lease_path(control: Path) -> Path:
    return control / "lease"


def stop_path(control: Path) -> Path:
    return control / "stop"


def keeper_started_path(control: Path, node: int) -> Path:
    return control / f"node{node}.json"


def node_end_path(control: Path, node: int) -> Path:
    return control / f"node{node}.end"


def oom_path(control: Path, node: int) -> Path:
    return control / f"node{node}.oom"


def rank_end_path(control: Path, rank: int) -> Path:
    return control / f"rank{rank}.end"


def node_folder(control: Path, node: int) -> Path:
    return control / f"node{node}"


def stacks_path(control: Path, number: int) -> Path:
    return control / f"stacks-{number}.json"


def stacks_answer_path(control: Path, number: int, node: int) -> Path:
    return control / f"stacks-{number}.node{node}"


def module_path(control: Path, number: int) -> Path:
    return control / f"module-{number}.json"


def module_done_path(control: Path, number: int, node: int) -> Path:
    return control / f"module-{number}.node{node}"


def write(path: Path, note: msgspec.Struct) -> None:
    write_whole(path, msgspec.json.encode(note))


def read(path: Path, kind: type[Note]) -> Note | None:
    """Reads a file; returns None if it does not exist, or while NFS still returns a replaced one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return None
        raise


def started_nodes(control: Path, nodes: int) -> Iterator[KeeperStarted]:
    for number in range(nodes):
        if (started := read(keeper_started_path(control, number), KeeperStarted)) is not None:
            yield started
