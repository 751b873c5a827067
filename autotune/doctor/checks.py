"""Checks what this machine has for tuning and what is missing: one row of `CHECKS` for each item.

Quick and without side effects: versions are read from package metadata, neither torch nor CUDA is imported, and a tool
that hangs is killed. Where it works, it imports the standard library alone: little else may be installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypedDict

from autotune.tuning.environment import PACKAGES, installed

TOOL_TIMEOUT_S = 10.0
GIB = 2**30
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # cgroup v2, then v1
UNLIMITED_BYTES = 2**60  # cgroup v1 reports a huge number where there is no limit


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Access to the machine. `run` returns the stdout of a tool, `read` the text of a file, `version` that of a
    package; None if it is absent."""

    run: Callable[[Sequence[str]], str | None]
    read: Callable[[str], str | None]
    version: Callable[[str], str | None]
    has_module: Callable[[str], bool]
    cores: Callable[[], int]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check. `look` returns what was found in words, None if it is missing; `how` says how to get it."""

    what: str
    needed_for: str
    how: str
    look: Callable[[Machine], str | None]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of one check. `how` is empty if nothing is missing."""

    what: str
    status: Literal["found", "missing"]
    found: str
    needed_for: str
    how: str


class DoctorDocument(TypedDict):
    """Document of `doctor --json`."""

    schema: int
    found: list[Found]


def examine(machine: Machine | None = None) -> list[Found]:
    """Returns the result of every check, in the order of `CHECKS`."""
    here = machine or this_machine()
    return [_answer(check, check.look(here)) for check in CHECKS]


def this_machine() -> Machine:
    return Machine(
        run=_run,
        read=_read,
        version=installed,
        has_module=lambda name: find_spec(name) is not None,
        cores=lambda: len(os.sched_getaffinity(0)),
    )


def _answer(check: Check, found: str | None) -> Found:
    return Found(
        what=check.what,
        status="missing" if found is None else "found",
        found=found or "",
        needed_for=check.needed_for,
        how=check.how if found is None else "",
    )


def _cpu(machine: Machine) -> str:
    models = re.findall(r"^model name\s*:\s*(.+)$", machine.read("/proc/cpuinfo") or "", re.MULTILINE)
    return f"{machine.cores()} usable of {os.cpu_count()}" + (f", {models[0].strip()}" if models else "")


def _memory(machine: Machine) -> str | None:
    total = re.search(r"^MemTotal:\s+(\d+) kB", machine.read("/proc/meminfo") or "", re.MULTILINE)
    if total is None:
        return None
    limit = _cgroup_limit_bytes(machine)
    limited = f", limited to {limit / GIB:.1f} GiB by the control group" if limit is not None else ""
    return f"{int(total[1]) * 1024 / GIB:.1f} GiB{limited}"


def _cgroup_limit_bytes(machine: Machine) -> int | None:
    texts = (machine.read(path) for path in CGROUP_LIMITS)
    limits = [int(text) for text in texts if text and text.strip().isdecimal()]
    return next((limit for limit in limits if limit < UNLIMITED_BYTES), None)


def _gpus(machine: Machine) -> str | None:
    listed = machine.run(
        ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    )
    rows = Counter(tuple(cell.strip() for cell in line.split(",")) for line in (listed or "").splitlines() if line)
    kinds = [
        f"{count} × {row[0]}, {int(row[1]) / 1024:.0f} GiB, driver {row[2]}"
        for row, count in rows.items()
        if len(row) == 3 and row[1].isdecimal()
    ]
    return "; ".join(kinds) or None


def _gpu_links(machine: Machine) -> str | None:
    """Returns how GPU pairs are linked, from the matrix of `nvidia-smi topo -m` (NV18: 18 NVLinks; SYS: across
    sockets)."""
    matrix = [re.split(r"\s+", line.strip()) for line in (machine.run(["nvidia-smi", "topo", "-m"]) or "").splitlines()]
    rows = [row for row in matrix if row and re.fullmatch(r"GPU\d+", row[0]) and "X" in row]
    links = Counter(row[column] for index, row in enumerate(rows) for column in range(index + 2, len(rows) + 1))
    if not rows:
        return None
    return ", ".join(f"{count} pairs by {link}" for link, count in links.items()) or "one GPU, no link needed"


def _fabric(machine: Machine) -> str | None:
    """Returns the InfiniBand or RoCE adapters that the kernel lists."""
    listed = machine.run(["ls", "/sys/class/infiniband"])
    adapters = (listed or "").split()
    return ", ".join(adapters) or None


def _torch(machine: Machine) -> str | None:
    version = machine.version("torch")
    if version is None:
        return None
    text = machine.read(_torch_version_file()) or ""
    cuda = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return f"{version}, {f'CUDA {cuda[1]} build' if cuda else 'CPU build'}"


def _torch_version_file() -> str:
    return str(metadata.distribution("torch").locate_file("torch/version.py"))


def _package(*names: str) -> Callable[[Machine], str | None]:
    """Returns a check for the version of the first of these distributions that is installed."""
    return lambda machine: next((version for name in names if (version := machine.version(name))), None)


def _deep_ep(machine: Machine) -> str | None:
    version = machine.version("deep_ep")
    return version or ("installed, version unknown" if machine.has_module("deep_ep") else None)


def _first_line_of(*command: str) -> Callable[[Machine], str | None]:
    def look(machine: Machine) -> str | None:
        said = machine.run(command)
        return said.strip().splitlines()[0] if said and said.strip() else None

    return look


def _releases(machine: Machine) -> str | None:
    versions = {name: version for name in PACKAGES if (version := machine.version(name))}
    if "megatron-core" not in versions:
        return None
    from autotune.looks.releases import releases_text

    return releases_text(versions)


def _ninja(machine: Machine) -> str | None:
    """Returns the version of the program on the path, or of pip's, which ranks find beside their interpreter."""
    return _first_line_of("ninja", "--version")(machine) or machine.version("ninja")


def _slurm(machine: Machine) -> str | None:
    version = _first_line_of("sinfo", "--version")(machine)
    if version is None:
        return None
    partitions = [line.split() for line in (machine.run(["sinfo", "-h", "-o", "%P %D"]) or "").splitlines()]
    nodes = ", ".join(f"{row[0].rstrip('*')} {row[1]} nodes" for row in partitions if len(row) == 2)
    return f"{version}: {nodes}" if nodes else f"{version}, no partition answers"


CHECKS: tuple[Check, ...] = (
    Check(what="CPU cores", needed_for="ranks and their threads", how="", look=_cpu),
    Check(what="memory", needed_for="ranks; CPU bursts are limited to the recipe's memory", how="", look=_memory),
    Check(
        what="GPUs",
        needed_for="bursts of recipes that name a GPU; not needed for CPU recipes",
        how="install the NVIDIA driver so that `nvidia-smi` lists them, or run on a node that has them",
        look=_gpus,
    ),
    Check(
        what="GPU links",
        needed_for="knowing which GPUs share a fast link",
        how="comes with the NVIDIA driver (`nvidia-smi topo -m`)",
        look=_gpu_links,
    ),
    Check(
        what="network fabric",
        needed_for="fast training over several nodes",
        how="InfiniBand or RoCE adapters with their driver (rdma-core); inside a container pass /dev/infiniband in",
        look=_fabric,
    ),
    Check(
        what="torch",
        needed_for="engine megatron",
        how="pip install torch, in the build for this driver (pytorch.org/get-started)",
        look=_torch,
    ),
    Check(
        what="megatron-core",
        needed_for="engine megatron",
        how="pip install megatron-core",
        look=_package("megatron-core", "megatron_core"),
    ),
    Check(
        what="releases",
        needed_for="knowing whether a failure may be theirs and not the recipe's",
        how="install Megatron-Core",
        look=_releases,
    ),
    Check(
        what="C++ compiler",
        needed_for="selective recompute with Megatron-Core 0.17 and later, which compiles an extension",
        how="install g++ (apt install g++), on every node",
        look=_first_line_of(os.environ.get("CXX", "c++"), "--version"),
    ),
    Check(
        what="ninja",
        needed_for="the same extension",
        how="pip install ninja, on every node",
        look=_ninja,
    ),
    Check(
        what="transformer-engine",
        needed_for="FP8, fused router and permutation, TP overlap, CUDA graphs; without it Megatron's local layers run",
        how="on a machine with CUDA: pip install 'moe-autotune[gpu]'",
        look=_package("transformer-engine", "transformer_engine"),
    ),
    Check(
        what="deep-ep",
        needed_for="moe_token_dispatcher_type flex with backend deepep or hybridep",
        how="not on PyPI: build it from github.com/deepseek-ai/DeepEP (branch hybrid-ep for hybridep), with NVSHMEM for"
        " more than one node",
        look=_deep_ep,
    ),
    Check(
        what="nvtx",
        needed_for="named ranges in Nsight traces",
        how="pip install nvtx",
        look=_package("nvtx"),
    ),
    Check(
        what="optuna",
        needed_for="the search",
        how="pip install 'optuna>=5,<6'",
        look=_package("optuna"),
    ),
    Check(
        what="nsys",
        needed_for="recording Nsight traces, and reading .nsys-rep files (.sqlite exports are read without it)",
        how="install Nsight Systems (developer.nvidia.com/nsight-systems; package nsight-systems-cli)",
        look=_first_line_of("nsys", "--version"),
    ),
    Check(
        what="Slurm",
        needed_for="launcher slurm; not needed for launcher local",
        how="run on a login node of a Slurm cluster, with `sinfo` and `sbatch` on the path",
        look=_slurm,
    ),
    Check(
        what="ssh",
        needed_for="launcher hosts; not needed for launchers local and slurm",
        how="install an OpenSSH client; `ssh HOST true` has to work without a password",
        look=_first_line_of("sh", "-c", "ssh -V 2>&1"),  # ssh prints its version to stderr
    ),
)


def _run(command: Sequence[str]) -> str | None:
    """Returns a tool's stdout; None if it is absent, fails, or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
