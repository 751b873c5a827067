"""A stand-in for torchrun's agent that starts ranks as it does, with its variables, logs, signals and words.

Ahead of the real torch in PYTHONPATH it spares a start the import of torch; its ranks have the real one. Tests of the
agent's own part (which rank it names, how it ends with another node's) start the real agent:
tests/trainer/launchers/test_local_faults.py and others.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ENDING_S = 0.1  # between two looks at ranks that were asked to end
LIGHT = Path(__file__).parents[2]  # not in the PYTHONPATH of ranks
TERM_S = 30.0  # torchrun's time between SIGTERM and SIGKILL of the other ranks


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("nnodes", "node-rank", "nproc-per-node", "master-port", "max-restarts", "redirects"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--monitor-interval", type=float, required=True)
    for name in ("master-addr", "log-dir"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--no-python", action="store_true", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    ranks = [start(asked, local) for local in range(asked.nproc_per_node)]
    try:
        watch(ranks, look_s=asked.monitor_interval)
    finally:
        end(ranks)


def start(asked: argparse.Namespace, local: int) -> subprocess.Popen[bytes]:
    logs = Path(asked.log_dir, "none_0", "attempt_0", str(local))
    logs.mkdir(parents=True)
    paths = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if path != str(LIGHT)]
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "LOCAL_RANK": local,
        "RANK": asked.node_rank * asked.nproc_per_node + local,
        "GROUP_RANK": asked.node_rank,
        "LOCAL_WORLD_SIZE": asked.nproc_per_node,
        "WORLD_SIZE": asked.nnodes * asked.nproc_per_node,
        "MASTER_ADDR": asked.master_addr,
        "MASTER_PORT": asked.master_port,
    }
    threads = {"OMP_NUM_THREADS": "1"} if asked.nproc_per_node > 1 else {}
    env = threads | os.environ | {name: str(value) for name, value in variables.items()}
    with (logs / "stdout.log").open("w") as stdout, (logs / "stderr.log").open("w") as stderr:
        return subprocess.Popen(asked.command, env=env, stdout=stdout, stderr=stderr, start_new_session=True)


def watch(ranks: list[subprocess.Popen[bytes]], *, look_s: float) -> None:
    """Waits until all ranks have ended well; exits with 1 once one has not. Until it looks, a dead rank is a zombie,
    whose exit code the supervisor reads."""
    while any(rank.poll() is None for rank in ranks) or any(rank.returncode for rank in ranks):
        for local, rank in enumerate(ranks):
            if code := rank.poll():
                sys.exit(f"failed (exitcode: {code}) local_rank: {local} (pid: {rank.pid})")
        time.sleep(look_s)


def end(ranks: list[subprocess.Popen[bytes]]) -> None:
    left = [rank for rank in ranks if rank.poll() is None]
    for rank in left:
        rank.terminate()
    give_up = time.monotonic() + TERM_S
    while any(rank.poll() is None for rank in left) and time.monotonic() < give_up:
        time.sleep(ENDING_S)
    for rank in left:
        rank.kill()
