"""The probe over two nodes of a real Slurm, in network namespaces, with a link between them that is really slow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.tuning.lines import links_in_words
from tests.conftest import HANG_S
from tests.trainer.launchers.slurm.cluster import NODES, Cluster, why_not
from tests.trainer.launchers.slurm.network import Network, NotJoinedError
from tests.trainer.launchers.slurm.test_engines_on_slurm import recipe_on_nodes
from trainer.launchers.processes import marked
from trainer.microbenchmarks.groups import rows_of
from trainer.probe.probe import probe

pytestmark = [pytest.mark.slurm, pytest.mark.megatron]

RATE_GB_S = 0.1 / 8  # 100 Mbit


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    slurm = Cluster(folder=tmp_path / "slurm", name=f"slow{os.getpid()}n", network=Network(nodes=NODES, rate="100mbit"))
    slurm.folder.mkdir()
    try:
        slurm.start()
        with slurm.allocation() as variables:
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            yield slurm
    except NotJoinedError as error:
        pytest.skip(str(error))
    finally:
        slurm.stop()


def test_two_nodes_are_measured_and_show_their_slow_link(slow: Cluster, tmp_path: Path) -> None:
    recipe = recipe_on_nodes()
    rows, folder = rows_of(recipe), tmp_path / "probe"
    found = probe(recipe, home=tmp_path / "engine", folder=folder, rows=rows, within_s=HANG_S, group_s=HANG_S)
    assert found.failure is None
    links = found.links
    assert links is not None
    assert (links.nodes, links.ranks_per_node, links.backend, links.interfaces) == (2, 1, "gloo", ["eth0"])
    assert 0.15 * RATE_GB_S < links.bandwidth_gb_s < 1.2 * RATE_GB_S, links_in_words(links)
    assert 0 < links.latency_us < 1e6
    assert links.clocks_apart_s < 1.0  # one machine has one clock
    kinds = {row.kind: row for row in found.rows}
    assert [row.name for row in found.rows if row.kind != "nsys" and row.measured is None] == []
    far = kinds["ring_far"]
    sent_gb = far.sizes["gb"] / 2  # half of it stays
    assert 0.15 * RATE_GB_S < sent_gb / ((far.measured or 0) / 1e6) < 1.5 * RATE_GB_S, far
    assert {"ring_far", "gemm", "grouped", "attention", "layer_kept", "megatron"} <= set(kinds)
    assert [env for _, env in marked() if str(tmp_path) in env.get("PWD", "")] == []
