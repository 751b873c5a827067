"""`cpu_affinity: spread`: cores near the rank's GPU, shared equally by the ranks of a socket. Needs no GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

SOCKETS = {0: range(8), 1: range(8, 16)}
CROSSED = [1, 1, 0, 0]  # GPUs 0 and 1 hang on the second socket


def shares(nodes: list[int | None], cores: range = range(16)) -> list[set[int]]:
    from trainer.engines.megatron.affinity import own_share

    return [own_share(rank, nodes, cores, SOCKETS) for rank in range(len(nodes))]


def test_a_rank_gets_cores_of_the_socket_of_its_gpu() -> None:
    assert shares([*CROSSED]) == [{8, 9, 10, 11}, {12, 13, 14, 15}, {0, 1, 2, 3}, {4, 5, 6, 7}]


def test_without_sockets_cores_are_assigned_in_order() -> None:
    assert shares([None, None], range(4)) == [{0, 1}, {2, 3}]


def test_ranks_of_a_socket_with_fewer_cores_than_ranks_share_them_all() -> None:
    assert shares([0, 0, 0], range(2)) == [{0, 1}] * 3


def test_a_socket_none_of_whose_cores_may_be_used_counts_for_nothing() -> None:
    assert shares([1, 1], range(4)) == [{0, 1}, {2, 3}]


def test_the_kernel_gives_the_numa_node_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.engines.megatron.affinity import cores_by_numa_node, numa_nodes_of_gpus

    for bus, node in ((0x1B, "1\n"), (0x2C, "-1\n")):
        folder = tmp_path / f"bus/pci/devices/0000:{bus:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(node)
    (tmp_path / "devices/system/node/node1").mkdir(parents=True)
    (tmp_path / "devices/system/node/node1/cpulist").write_text("8-11,24\n")
    gpus = [SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0) for bus in (0x1B, 0x2C, 0x3D)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda rank: gpus[rank])
    assert numa_nodes_of_gpus(4, tmp_path) == [1, None, None, None]
    assert cores_by_numa_node(tmp_path) == {1: {8, 9, 10, 11, 24}}
