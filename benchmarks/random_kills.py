"""Kills random processes of small tuning runs on several nodes, and counts bursts lost or paid twice and processes
left.

    python -m benchmarks.random_kills [--kills 50] [--bursts 12] [--way WAY] [--minutes 60] [--seed 1]

Ways: allocation (steps of one Slurm job), per-burst (a Slurm job each), hosts (over ssh). Two nodes of two CPU ranks
on this machine: a real Slurm or real sshd (root). `moe-autotune run --resume` is started again after every kill that
ends it, the allocation after every one that ends that, until all bursts are paid for; then another run starts, until
there were as many kills as requested. After each the journal is read: a burst is lost if the journal had it as
finished and no longer does, paid twice if ranks received it after that, left if a process or a job of the study is
still there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from autotune.tuning.events import BurstFinished, Ended
from autotune.tuning.journal import JOURNAL, read_events
from tests.trainer.launchers.hosts import machines
from tests.trainer.launchers.slurm.cluster import Cluster, why_not
from tests.trainer.launchers.slurm.network import Network
from trainer.launchers.nodes.start import KEEPER
from trainer.launchers.processes import Process, status_of

# way -> kinds of processes that may be killed
VICTIMS = {
    "allocation": ("tuner", "srun", "slurmd", "rank"),
    "per-burst": ("tuner", "srun", "slurmd", "rank"),
    "hosts": ("tuner", "ssh", "keeper", "rank"),
}
# words by which their commands are found
WORDS = {"srun": "srun", "ssh": "ssh", "keeper": KEEPER, "rank": "trainer.worker"}
OVER = ("budget", "converged", "infeasible")
PAUSE_S = (1.0, 75.0)  # range of seconds between two kills: on a busy machine a cold start of ranks takes most of them
DOWN_S = (1.0, 15.0)  # downtime of a slurmd: Slurm marks a node down after 10
GONE_S = 90.0  # seconds for remaining processes to end by themselves: the lease, Slurm's own KillWait


@dataclass(kw_only=True)
class KilledRun:
    """One tuning run under kills. `cluster`: None without Slurm."""

    cluster: Cluster | None
    folder: Path
    bursts: int
    way: str
    rng: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0  # starts of the tuner
    allocations: int = 0
    known: dict[int, BurstFinished] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    _tuner: subprocess.Popen[bytes] | None = None
    _job: str | None = None

    def run(self, kills: int, until: float) -> None:
        """Runs until the budget is spent; kills at most `kills` times, and not after `until`."""
        try:
            while not self._over():
                self._keep_running()
                killing = self.kills.total() < kills and time.time() < until
                self._wait(self.rng.uniform(*PAUSE_S) if killing else 1.0)
                if killing:
                    self._kill()
                self._check_journal()
        finally:
            if self._tuner is not None:
                self._tuner.kill()
                self._tuner.wait()
            if self._job is not None:
                self._slurm.run("scancel", self._job)
        self._check_journal()

    def _over(self) -> bool:
        """Returns True if the tuner has ended by itself with its study finished."""
        return self._tuner is not None and self._tuner.poll() is not None and self._has_ended()

    def _has_ended(self) -> bool:
        events = self._events()
        return bool(events) and isinstance(events[-1], Ended) and events[-1].status in OVER

    def _events(self) -> list[Any]:
        path = self.folder / "study" / JOURNAL
        return read_events(path)[0] if path.exists() else []

    def _wait(self, seconds: float) -> None:
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up and self._tuner is not None and self._tuner.poll() is None:
            time.sleep(0.1)

    def _keep_running(self) -> None:
        if self._tuner is not None and self._tuner.poll() is None:
            return
        if self.way == "allocation" and not self._allocated():
            said = self._slurm.run("salloc", "--nodes=2", "--mem=6000", "--no-shell", timeout_s=120)
            self._job = said.rsplit("allocation ", 1)[-1].split()[0]
            self.allocations += 1
        started = (self.folder / "study" / JOURNAL).exists()
        argv = ["run", str(self.folder / "run.yaml"), "--study", str(self.folder / "study")]
        more = ["--resume"] if started else []
        self.starts += 1
        with (self.folder / "tuner.log").open("ab") as log:
            self._tuner = subprocess.Popen(
                [sys.executable, "-m", "autotune.cli", *argv, "--budget", str(self.bursts), *more],
                env=self._environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _environment(self) -> dict[str, str]:
        env = dict(os.environ)
        if self.cluster is not None:
            env["SLURM_CONF"] = str(self.cluster.conf)
        if self._job is None:
            return env
        nodes = ",".join(self._slurm.nodes)
        return {**env, "SLURM_JOB_ID": self._job, "SLURM_JOB_NODELIST": nodes, "SLURM_JOB_NUM_NODES": "2"}

    @property
    def _slurm(self) -> Cluster:
        assert self.cluster is not None
        return self.cluster

    def _allocated(self) -> bool:
        return self._job is not None and self._job in self._slurm.run("squeue", "-h", "-t", "R", "-o", "%A").split()

    def _kill(self) -> None:
        victim = self.rng.choice(VICTIMS[self.way])
        if self._slurmd() if victim == "slurmd" else self._process(victim):
            self.kills[victim] += 1
            print(f"kill {self.kills.total()} of the run: {victim}; {len(self.known)} bursts paid for", flush=True)

    def _process(self, victim: str) -> bool:
        processes = _alive(self._tuner) if victim == "tuner" else _running(self.folder, WORDS[victim])
        if not processes:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.rng.choice(processes).pid, signal.SIGKILL)
        return True

    def _slurmd(self) -> bool:
        with self._slurm.without_slurmd(self.rng.choice(self._slurm.nodes)):
            self._wait(self.rng.uniform(*DOWN_S))
        return True

    def _check_journal(self) -> None:
        """Records bursts that are no longer in the journal as finished, and those that now are."""
        finished = {event.burst: event for event in self._events() if isinstance(event, BurstFinished)}
        self.lost += [number for number, event in self.known.items() if finished.get(number) != event]
        self.known = finished

    def paid_twice(self) -> list[int]:
        """Returns bursts that ranks ran after the journal had them as finished, or that it has twice."""
        events = [event for event in self._events() if isinstance(event, BurstFinished)]
        twice = [number for number, times in Counter(event.burst for event in events).items() if times > 1]
        ended_at = {f"{event.burst:04d}": event.at for event in events}
        for request in (self.folder / "study/engine").glob("*/*/request-*.json"):
            burst = Path(yaml.safe_load(request.read_text()).get("burst") or "").name
            if burst in ended_at and request.stat().st_mtime > ended_at[burst] + 1.0:
                twice.append(int(burst))
        return sorted(twice)

    def left(self) -> list[str]:
        """Returns processes of the study, and our jobs and steps, that still exist after GONE_S."""
        give_up = time.monotonic() + GONE_S
        while (found := self._remaining()) and time.monotonic() < give_up:
            time.sleep(0.5)
        return found

    def _remaining(self) -> list[str]:
        # options of squeue for jobs, and for steps
        listed = (("-o", "%A %j"), ("-s", "-o", "%i %j")) if self.cluster is not None else ()
        found = [line for words in listed for line in self._slurm.run("squeue", "-h", *words).splitlines()]
        processes = [f"{process.pid}" for process in _running(self.folder, "")]
        return [each for each in found if "moe-" in each] + processes


def _alive(tuner: subprocess.Popen[bytes] | None) -> list[Process]:
    status = status_of(tuner.pid) if tuner is not None and tuner.poll() is None else None
    return [status.process] if status else []


def _running(folder: Path, word: str) -> list[Process]:
    """Returns live processes whose command names the study's engine and the word."""
    found: list[Process] = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            status = status_of(pid)
            ours = any(str(folder / "study/engine") in each for each in command)
            if ours and status and not status.dead and (not word or word in command) and "random_kills" not in command:
                found.append(status.process)
    return found


def recipe(launcher: Any) -> dict[str, Any]:
    return {
        "name": "run",
        "model": {
            "num_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "vocab_size": 256,
            "num_moe_experts": 4,
            "moe_router_topk": 2,
            "moe_ffn_hidden_size": 64,
        },
        "cluster": {"gpu": "cpu", "nodes": 2, "gpus_per_node": 2, "memory_gib": 2.0},
        "training": {"seq_length": 64, "global_batch_size": 16, "micro_batch_size": 1, "precision": "fp32"},
        "parallelism": {"expert_model_parallel_size": 2},
        "burst": {"launcher": launcher, "warmup_steps": 1, "measure_steps": 4, "trace_steps": 1, "deadline_s": 240},
        "tune": {"patience": 12},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--bursts", type=int, default=12)
    parser.add_argument("--way", choices=tuple(VICTIMS), default="allocation")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if reason := machines.why_not() if asked.way == "hosts" else why_not():
        print(f"not run: {reason}")
        return 1
    rng, started = random.Random(asked.seed), time.time()
    until = started + 60 * asked.minutes
    runs: list[Ledger] = []
    while (done := sum(each.kills.total() for each in runs)) < asked.kills and time.time() < until:
        with tempfile.TemporaryDirectory() as name, place(asked.way, Path(name)) as (cluster, launcher):
            folder = Path(name)
            (folder / "run.yaml").write_text(yaml.safe_dump(recipe(launcher)))
            run = KilledRun(cluster=cluster, folder=folder, bursts=asked.bursts, way=asked.way, rng=rng)
            runs.append(played(run, asked.kills - done, until))
        Console().print(table_of(runs, asked.way, time.time() - started))
    return 0


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Result of one run under kills."""

    kills: Counter[str]
    starts: int
    allocations: int
    bursts: int
    lost: list[int]
    twice: list[int]
    left: list[str]


@contextlib.contextmanager
def place(way: str, folder: Path) -> Iterator[tuple[Cluster | None, Any]]:
    """Starts two nodes; yields the cluster and the recipe's launcher for them."""
    own = folder / "nodes"
    own.mkdir()
    if way == "hosts":
        found = machines.Hosts(folder=own, network=Network(nodes=machines.HOSTS))
        nodes: Cluster | machines.Hosts = found
        answer: tuple[Cluster | None, Any] = (None, {"hosts": found.names, "ssh": list(found.ssh)})
    else:
        nodes = slurm = Cluster(folder=own)
        answer = (slurm, "slurm" if way == "allocation" else {"slurm": {"job": "per-burst"}})
    try:
        nodes.start()
        yield answer
    finally:
        nodes.stop()


def played(run: KilledRun, kills: int, until: float) -> Ledger:
    run.run(kills, until)
    return Ledger(
        kills=run.kills,
        starts=run.starts,
        allocations=run.allocations,
        bursts=len(run.known),
        lost=sorted(set(run.lost)),
        twice=run.paid_twice(),
        left=run.left(),
    )


def table_of(runs: list[Ledger], way: str, seconds: float) -> Table:
    kills = sum((run.kills for run in runs), Counter[str]())
    by = ", ".join(f"{times} {name}" for name, times in kills.most_common())
    rows = {
        "kills": f"{kills.total()} ({by})",
        "runs, starts of the tuner": f"{len(runs)}, {sum(run.starts for run in runs)}",
        "allocations": str(sum(run.allocations for run in runs)),
        "bursts paid for": str(sum(run.bursts for run in runs)),
        "bursts lost": str([run.lost for run in runs if run.lost] or 0),
        "bursts paid twice": str([run.twice for run in runs if run.twice] or 0),
        "left when all is over": str([run.left for run in runs if run.left] or "nothing"),
        "minutes": f"{seconds / 60:.1f}",
    }
    table = Table("random kills", way, show_edge=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


if __name__ == "__main__":
    sys.exit(main())
