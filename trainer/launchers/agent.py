"""The agent: starts a node's ranks as torchrun would, without importing torch, which takes a second.

`python -m trainer.launchers.agent <nodes> <node> <ranks per node> <address> <port> <output folder> <command…>` runs the
command once per rank, with torchrun's variables, and ends when all ranks have ended. When one fails, it names that rank
in torchrun's words, ends the others and exits with 1. As where srun starts the ranks, rank 0 hosts the store at which
they meet, so that its address and port have to be free there.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

# How often the agent looks for dead ranks. Until it does, `watch.py` can read how a rank ended: seldom, so that its
# polling nearly always comes first.
LOOK_S = 0.5
_TERM_S = 30.0  # seconds between TERM and KILL for the other ranks, as torchrun's
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")  # torch elastic multiprocessing/api.py


def agent_command(
    argv: Sequence[str],
    *,
    ranks: int,
    port: int,
    control: Path,
    nodes: int = 1,
    node: int = 0,
    address: str = "127.0.0.1",
) -> list[str]:
    """Returns the command of one node's agent; the output of its ranks goes to `control`."""
    place = [str(nodes), str(node), str(ranks), address, str(port), str(_output(control))]
    return [sys.executable, "-m", "trainer.launchers.agent", *place, *argv]


def outputs_in(control: Path, local_rank: int) -> list[Path]:
    """Returns the output files of a rank on the node whose agent writes to `control`."""
    paths = [_output(control) / str(local_rank) / f"{stream}.log" for stream in ("stdout", "stderr")]
    return [path for path in paths if path.exists()]  # stderr last: the last line is that of the exception


def _output(control: Path) -> Path:
    return control / "output"


def reported_deaths(log: str) -> dict[int, int]:
    """Returns {rank: exit code} for the ranks that the agent reports; for a single node, where local ranks are
    ranks."""
    return {int(rank): int(code) for code, rank in _FAILED.findall(log)}


def environment_of(*, nodes: int, node: int, ranks: int, local: int, address: str, port: int) -> dict[str, str]:
    """Returns the variables that torchrun gives a rank.

    Source: torch elastic agent/server/local_elastic_agent.py.
    """
    rank, world = node * ranks + local, nodes * ranks
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(node),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_WORLD_SIZE": str(world),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def defaults_of(ranks: int) -> dict[str, str]:
    """Returns what torchrun sets for all ranks where the environment does not. Source: torch distributed/run.py."""
    return {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"} | ({"OMP_NUM_THREADS": "1"} if ranks > 1 else {})


def main(words: Sequence[str]) -> int:
    nodes, node, ranks, port = (int(words[at]) for at in (0, 1, 2, 4))
    address, output, command = words[3], Path(words[5]), words[6:]
    asked: list[int] = []  # signals to end; a handler that raised could lose a rank that is just being started
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for local in range(ranks):
            own = environment_of(nodes=nodes, node=node, ranks=ranks, local=local, address=address, port=port)
            started.append(_start(command, {**defaults_of(ranks), **os.environ, **own}, output / str(local)))
        return _wait(started, asked)
    finally:
        _end_all(started)


def _start(command: Sequence[str], env: Mapping[str, str], output: Path) -> subprocess.Popen[bytes]:
    output.mkdir(parents=True)
    with (output / "stdout.log").open("wb") as stdout, (output / "stderr.log").open("wb") as stderr:
        return subprocess.Popen(command, env=env, stdout=stdout, stderr=stderr, start_new_session=True)


def _wait(ranks: Sequence[subprocess.Popen[bytes]], asked: Sequence[int]) -> int:
    """Waits until all ranks have ended, one has failed, or the agent is asked to end; returns the agent's exit code."""
    while True:
        if asked:
            print(f"the agent was asked to end by {signal.Signals(asked[0]).name}", flush=True)
            return 1
        codes = [rank.poll() for rank in ranks]
        for local, code in enumerate(codes):
            if code:
                print(f"failed (exitcode: {code}) local_rank: {local} (pid: {ranks[local].pid})", flush=True)
        if any(codes):
            return 1
        if None not in codes:
            return 0
        time.sleep(LOOK_S)


def _end_all(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks the ranks that still run, and what they started in their sessions, to end; kills them if they do not."""
    left = [rank for rank in ranks if rank.poll() is None]
    for rank in left:
        os.killpg(rank.pid, signal.SIGTERM)
    give_up = time.monotonic() + _TERM_S
    for rank in left:
        try:
            rank.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(rank.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
