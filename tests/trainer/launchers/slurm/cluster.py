"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd, started as root.

The nodes are on loopback, or in network namespaces. It starts in a second. Each has its own ports, names and folders,
so that several may run at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import HANG_S
from tests.trainer.launchers.slurm.network import Network, NotJoinedError

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "scontrol", "squeue", "scancel")
NODES = 2
LOOK_S = 0.25  # between two questions to Slurm
ANSWER_S = 20.0  # time for an answer while the cluster stops: the controller may be gone
_SUBMIT = ("sbatch", "salloc")  # Slurm may have accepted these though no answer came
_BUSY = re.compile(r"[Ss]ocket timed out|Unable to contact slurm controller|Zero Bytes were transmitted|Connection re")
USUAL, POLITE, URGENT = "debug", "polite", "urgent"
# each has all nodes; jobs of URGENT preempt those of the others, and POLITE warns its jobs before
PARTITIONS = {
    USUAL: "Default=YES PriorityTier=1 MaxTime=INFINITE State=UP",
    POLITE: "PriorityTier=1 GraceTime=10 MaxTime=INFINITE State=UP",
    URGENT: "PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE State=UP",
}
_MEMORY = Path("/sys/fs/cgroup/memory")  # cgroup v1: v2 needs systemd or a delegated tree


def why_not() -> str | None:
    """Returns why no Slurm can be started here; None if it can."""
    missing = [name for name in PROGRAMS if _program(name) is None]
    if missing:
        return f"without Slurm ({', '.join(missing)})"
    return None if os.geteuid() == 0 else "without root, which slurmd needs"


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@dataclass(kw_only=True)
class Cluster:
    folder: Path
    name: str = field(default_factory=lambda: f"t{os.getpid()}n")
    limits_memory: bool = field(default_factory=_MEMORY.is_dir)
    network: Network | None = None  # None: both nodes have this machine's own
    sockets: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="s", dir="/tmp")))  # 108 bytes at most

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def nodes(self) -> list[str]:
        return [f"{self.name}{number}" for number in range(1, NODES + 1)]

    def run(self, *argv: str, timeout_s: float = HANG_S) -> str:
        """Runs a program of Slurm's, again where the controller was too busy to answer, and returns what it printed."""
        env, give_up = {**os.environ, "SLURM_CONF": str(self.conf)}, time.monotonic() + timeout_s
        while True:
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout_s)
            said = done.stdout + done.stderr
            if not done.returncode:
                return said
            if argv[0] in _SUBMIT or not _BUSY.search(said) or time.monotonic() > give_up:
                error = subprocess.CalledProcessError(done.returncode, argv, done.stdout, done.stderr)
                error.add_note(said)
                raise error
            time.sleep(LOOK_S)

    def change(self, *argv: str, job: str) -> None:
        """Runs a command on the job until Slurm accepts it; fails if the job is over before.

        A busy controller refuses one now and then, also in words that `run` does not know.
        """

        def accepted() -> bool:
            with contextlib.suppress(subprocess.CalledProcessError):
                self.run(*argv)
                return True
            assert job in self.run("squeue", "-h", "-o", "%i"), f"job {job} was over before {argv}"
            return False

        self._await(accepted)

    def start(self) -> None:
        """Starts the cluster. Raises NotJoinedError if the nodes cannot have their own network."""
        if self.network is not None:
            self.network.start()
            if not self.network.joined():
                raise NotJoinedError("two network namespaces of this machine do not reach each other over a bridge")
        self._munge()
        self.conf.write_text(self._slurm_conf())
        (self.folder / "cgroup.conf").write_text(_CGROUP_CONF)
        self._daemon("slurmctld", "-f", str(self.conf))
        for node in self.nodes:
            (self.sockets / node).mkdir()
            self._slurmd(node)
        self._await(lambda: self._idle() == NODES)

    def _slurmd(self, node: str) -> None:
        inside = self.network.inside(self.nodes.index(node) + 1) if self.network is not None else []
        self._daemon("slurmd", "-f", str(self.conf), "-N", node, inside=inside)

    def _await(self, done: Callable[[], bool]) -> None:
        give_up = time.monotonic() + HANG_S
        while not done():
            assert time.monotonic() < give_up, self.run("sinfo")
            time.sleep(LOOK_S)

    def _idle(self) -> int:
        try:
            return self.run("sinfo", "-h", "-N", "-p", USUAL, "-o", "%t").split().count("idle")
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return 0

    def _munge(self) -> None:
        key, socket_path = self.folder / "munge.key", self.sockets / "munge"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._daemon(
            *("munged", "--force", f"--key-file={key}", f"--socket={socket_path}", "--num-threads=2"),
            *(f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log"),
            f"--seed-file={self.folder}/munged.seed",
        )

    def _daemon(self, name: str, *words: str, inside: Sequence[str] = ()) -> None:
        program = _program(name)
        assert program is not None
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        subprocess.run([*inside, program, *words], env=env, check=True, timeout=HANG_S, stderr=subprocess.DEVNULL)

    def _slurm_conf(self) -> str:
        host, track = socket.gethostname().split(".")[0], _CGROUPS if self.limits_memory else _NO_CGROUPS
        here, ports = self.folder, _free_ports(NODES + 1)
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr={at} Port={port} CPUs=8 RealMemory=8000 State=UNKNOWN"
            for node, at, port in zip(self.nodes, self._addresses[1:], ports[1:], strict=True)
        )
        return (
            f"ClusterName=moetest\nSlurmctldHost={host}({self._addresses[0]})\nSlurmctldPort={ports[0]}\n"
            f"AuthInfo=socket={self.sockets}/munge\nSlurmctldPidFile={here}/slurmctld.pid\nSlurmdPidFile={here}/slurmd.%n.pid\n"
            f"SlurmdSpoolDir={self.sockets}/%n\nStateSaveLocation={here}/state\nSlurmctldLogFile={here}/slurmctld.log\n"
            f"SlurmdLogFile={here}/slurmd.%n.log\nFirstJobId={os.getpid()}\n{track}{_SETTINGS}{nodes}\n"
            + "".join(
                f"PartitionName={name} Nodes={','.join(self.nodes)} {words}\n" for name, words in PARTITIONS.items()
            )
        )

    @property
    def _addresses(self) -> list[str]:
        """Returns the addresses of the controller and of each node."""
        if self.network is None:
            return ["127.0.0.1"] * (1 + NODES)
        return [self.network.controller, *map(self.network.address, range(1, NODES + 1))]

    @contextlib.contextmanager
    def allocation(self, *words: str, memory_mib: int = 4000) -> Iterator[dict[str, str]]:
        """Yields the variables of an allocation of both nodes by salloc. `words`: more arguments of salloc."""
        said = self.run("salloc", f"--nodes={NODES}", f"--mem={memory_mib}", "--no-shell", *words, timeout_s=HANG_S)
        found = re.search(r"Granted job allocation (\d+)", said)
        assert found, said
        nodes = f"{self.name}[1-{NODES}]"
        try:
            yield {
                "SLURM_CONF": str(self.conf),
                "SLURM_JOB_ID": found[1],
                "SLURM_JOB_NODELIST": nodes,
                "SLURM_JOB_NUM_NODES": str(NODES),
            }
        finally:
            self.run("scancel", found[1])
            self._await(lambda: found[1] not in self.run("squeue", "-h", "-o", "%i"))

    @contextlib.contextmanager
    def preempted(self) -> Iterator[None]:
        """Preempts the running job by one of higher priority; on leaving, that job is gone and the nodes are free."""
        asked = ("--exclusive", "--mem=0", "--output=/dev/null", "--wrap", "sleep 1000")
        job = self.run("sbatch", "--parsable", f"--partition={URGENT}", f"--nodes={NODES}", *asked).strip()
        try:
            self._await(lambda: self.run("squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING")
            yield
        finally:
            self.run("scancel", job)
            self._await(lambda: job not in self.run("squeue", "-h", "-o", "%i"))

    def let_run_out(self, job: str, *, in_s: int = 0) -> None:
        """Sets the job's end to `in_s` seconds from now: Slurm ends the job at its next check, every half minute."""
        self.change("scontrol", "update", f"JobId={job}", f"EndTime=now+{in_s}", job=job)

    @contextlib.contextmanager
    def without_slurmd(self, node: str) -> Iterator[None]:
        """Kills the node's daemon; restores the node afterwards."""
        os.kill(int((self.folder / f"slurmd.{node}.pid").read_text()), signal.SIGKILL)
        try:
            yield
        finally:
            self._slurmd(node)
            self._await(lambda: "down" not in self.run("sinfo", "-h", "-N", "-n", node, "-o", "%T"))

    def stop(self) -> None:
        """Ends everything that was started, and what slurmd left."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", "--me", timeout_s=ANSWER_S)
        for path in sorted(self.folder.glob("*.pid"), reverse=True):  # slurmd, slurmctld, munged
            with contextlib.suppress(FileNotFoundError):  # one that ends takes its file along
                _end(int(path.read_text()))
        if self.network is not None:
            self.network.stop()
        for path in _MEMORY.parent.glob(f"*/slurm_{self.name}*") if _MEMORY.is_dir() else ():
            for folder, _, _ in os.walk(path, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        shutil.rmtree(self.sockets, ignore_errors=True)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        give_up = time.monotonic() + HANG_S
        while time.monotonic() < give_up:
            os.kill(pid, 0)
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    """Returns free ports below those that the kernel assigns to connections, so that no other process takes them."""
    drawn = random.sample(range(12_000, 32_000), 20_000)
    return list(itertools.islice(filter(_is_free, drawn), count))


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


_CGROUP_CONF = """CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainCores=no
ConstrainRAMSpace=yes
ConstrainSwapSpace=no
ConstrainDevices=no
"""
_CGROUPS = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\n"
_NO_CGROUPS = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
_SETTINGS = """SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout=20
MessageTimeout=30
BatchStartTimeout=120
UnkillableStepTimeout=300
InactiveLimit=0
KillWait=5
MinJobAge=300
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
MpiDefault=none
PropagateResourceLimits=NONE
JobRequeue=0
DefMemPerNode=1000
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""
