"""Assigns cores of the node to a rank for `cpu_affinity: spread`: an equal share of those near its GPU.

The GPUs of a DGX are attached to two sockets, and a rank on the wrong one launches kernels more slowly. On CPUs, and
where the kernel reports no NUMA node, cores are assigned in order.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

NumaNode = int
SYS = Path("/sys")


def own_share(
    rank: int,
    nodes: Sequence[NumaNode | None],
    cores: Collection[int],
    cores_of: Mapping[NumaNode, Collection[int]],
) -> set[int]:
    """Returns the cores of local rank `rank`, out of those that this process may use.

    `nodes` has the NUMA node of each local rank's GPU, None if unknown. Ranks on one NUMA node share its cores equally
    and in order; if there are fewer cores than ranks, each gets all of them.
    """
    mine = nodes[rank]
    near = sorted(set(cores) & set(cores_of.get(mine, ()))) if mine is not None else []
    usable = near or sorted(cores)
    sharing = [other for other, node in enumerate(nodes) if node == mine]
    each, place = len(usable) // len(sharing), sharing.index(rank)
    return set(usable[place * each : (place + 1) * each]) if each else set(usable)


def numa_nodes_of_gpus(ranks: int, sys: Path = SYS) -> list[NumaNode | None]:
    """Returns the NUMA node of the GPU of each local rank, in order; None for every rank without a GPU."""
    import torch

    gpus = torch.cuda.device_count()
    return [_numa_node(torch.cuda.get_device_properties(rank), sys) if rank < gpus else None for rank in range(ranks)]


def _numa_node(gpu: object, sys: Path) -> NumaNode | None:
    """Returns the NUMA node that the kernel reports for the GPU's PCI address; the kernel's -1 means unknown (None)."""
    # an older torch has no such attributes
    place = [getattr(gpu, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")]
    address = "{:04x}:{:02x}:{:02x}.0".format(*place)
    with suppress(OSError, ValueError):
        node = int((sys / "bus/pci/devices" / address / "numa_node").read_text())
        return node if node >= 0 else None
    return None


def cores_by_numa_node(sys: Path = SYS) -> dict[NumaNode, set[int]]:
    """Returns the cores of every NUMA node; {} if the kernel does not report them."""
    folders = (sys / "devices/system/node").glob("node[0-9]*")
    return {int(folder.name.removeprefix("node")): _listed((folder / "cpulist").read_text()) for folder in folders}


def _listed(text: str) -> set[int]:
    """Parses the kernel's list of cores: "0-3,8" is {0, 1, 2, 3, 8}."""
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}


def pin(cores: Collection[int]) -> None:
    """Pins all threads of this process to the cores; affinity is per thread, so those that already run are pinned one
    by one."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # the thread has ended in the meantime
            os.sched_setaffinity(int(thread), cores)
