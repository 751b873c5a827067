"""The doctor reads the machine through a `Machine`, so that tests can give it any machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from autotune.doctor.checks import CHECKS, Found, Machine, examine

TOPOLOGY = """\
        GPU0    GPU1    GPU2    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    SYS     PIX     0-47            0               N/A
GPU1    NV18     X      NV18    SYS     0-47            0               N/A
GPU2    SYS     NV18     X      SYS     48-95           1               N/A
NIC0    PIX     SYS     SYS      X

Legend:
  X    = Self
"""


def machine(
    *,
    tools: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    packages: Mapping[str, str] | None = None,
) -> Machine:
    said = tools or {}

    def run(command: Sequence[str]) -> str | None:
        return next((text for start, text in said.items() if " ".join(command).startswith(start)), None)

    return Machine(
        run=run,
        read=lambda path: next((text for name, text in (files or {}).items() if path.endswith(name)), None),
        version=(packages or {}).get,
        has_module=lambda name: False,
        cores=lambda: 4,
    )


def answer(what: str, here: Machine) -> Found:
    return next(found for found in examine(here) if found.what == what)


def test_a_bare_machine_says_what_each_missing_thing_is_for_and_how_to_get_it() -> None:
    missing = [found for found in examine(machine()) if found.status == "missing"]
    assert {"GPUs", "torch", "megatron-core", "transformer-engine", "deep-ep", "nsys", "Slurm", "ssh"} <= {
        f.what for f in missing
    }
    for found in missing:
        assert found.needed_for
        assert found.how or found.what == "memory"


def test_equal_gpus_are_counted() -> None:
    listed = "NVIDIA H100 80GB HBM3, 81559, 550.54.15\n" * 8
    found = answer("GPUs", machine(tools={"nvidia-smi --query-gpu": listed}))
    assert found.found == "8 × NVIDIA H100 80GB HBM3, 80 GiB, driver 550.54.15"
    assert found.how == ""


def test_pairs_of_gpus_are_counted_by_their_link() -> None:
    found = answer("GPU links", machine(tools={"nvidia-smi topo": TOPOLOGY}))
    assert found.found == "2 pairs by NV18, 1 pairs by SYS"


def test_a_driver_that_finds_no_device_is_no_gpu() -> None:
    assert answer("GPUs", machine(tools={"nvidia-smi": "No devices were found\n"})).status == "missing"


@pytest.mark.parametrize(("name", "limit"), [("memory.max", "8589934592\n"), ("memory.limit_in_bytes", "8589934592\n")])
def test_the_limit_of_a_control_group_is_named(name: str, limit: str) -> None:
    files = {"/proc/meminfo": "MemTotal:       25165824 kB\n", name: limit}
    assert answer("memory", machine(files=files)).found == "24.0 GiB, limited to 8.0 GiB by the control group"


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n"])
def test_a_control_group_without_a_limit_is_not_mentioned(limit: str) -> None:
    files = {"/proc/meminfo": "MemTotal:       25165824 kB\n", "memory.limit_in_bytes": limit}
    assert answer("memory", machine(files=files)).found == "24.0 GiB"


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '12.8'\n", "CUDA 12.8 build"),
        ("cuda: Optional[str] = None\n", "CPU build"),
    ],
)
def test_the_build_of_torch_is_found_without_importing_it(text: str, build: str) -> None:
    here = machine(files={"torch/version.py": text}, packages={"torch": "2.13.0"})
    assert answer("torch", here).found == f"2.13.0, {build}"


def test_slurm_names_its_partitions() -> None:
    tools = {"sinfo --version": "slurm 24.05.1\n", "sinfo -h": "batch* 16\ndebug 2\n"}
    assert answer("Slurm", machine(tools=tools)).found == "slurm 24.05.1: batch 16 nodes, debug 2 nodes"


def test_an_ssh_that_is_there_is_found() -> None:
    tools = {"sh -c ssh -V": "OpenSSH_9.2p1 Debian-2, OpenSSL 3.0.11\n"}
    assert answer("ssh", machine(tools=tools)).found.startswith("OpenSSH_9.2p1")


def test_the_first_line_of_a_tool_is_its_version() -> None:
    said = "NVIDIA Nsight Systems version 2025.3.1\nmore\n"
    assert answer("nsys", machine(tools={"nsys": said})).found == "NVIDIA Nsight Systems version 2025.3.1"


def test_this_machine_can_be_examined_and_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from autotune.doctor.checks import examine; found = examine(); "
        "assert {one.what for one in found if one.status == 'found'} >= {'CPU cores', 'memory'}; "
        "assert not {'torch', 'megatron', 'numpy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_is_examined_twice() -> None:
    assert len({check.what for check in CHECKS}) == len(CHECKS)
