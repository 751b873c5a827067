"""Checks the first steps of a start on several nodes, the same for every launcher."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.places import ROOT
from trainer.launchers.nodes import folder
from trainer.launchers.nodes.start import keeper_argv, prepare_start
from trainer.launchers.processes import MARK


def test_nothing_of_an_earlier_start_is_left_and_nobody_else_reads_the_environment(tmp_path: Path) -> None:
    control = tmp_path / "jobs/0007"
    (control / "node0").mkdir(parents=True)
    (control / "stop").touch()
    prepared = prepare_start(
        control,
        ["python", "-m", "worker"],
        env={"A": "ours", "PYTHONPATH": "/mine"},
        passed={"A": "the tuner's", "NCCL_DEBUG": "INFO"},
        nodes=2,
        ranks_per_node=4,
        python="python3",
        interface="ib0",
        outlives_s=60.0,
    )
    assert [path.name for path in control.iterdir()] == ["start.json"]
    assert stat.S_IMODE(control.stat().st_mode) == 0o700
    start = folder.read(folder.start_path(control), folder.Start)
    assert start is not None
    assert (start.token, start.nodes, start.ranks_per_node, start.outlives_s) == (prepared.token, 2, 4, 60.0)
    assert start.env == {
        "A": "ours",
        "NCCL_DEBUG": "INFO",
        "PYTHONPATH": f"{ROOT}:/mine",
        "PYTHONSAFEPATH": "1",
    }
    assert prepared.variables[MARK] == prepared.mark


def test_a_mark_is_a_variable_of_the_keeper_where_nobody_hands_the_environment_on() -> None:
    words = keeper_argv((), python="python3", control=Path("/c"), token="t", mark="m")
    assert words[:4] == ["env", f"PYTHONPATH={ROOT}", "PYTHONSAFEPATH=1", f"{MARK}=m"]
