"""Torch's flight recorder: real ranks that wait for each other, and dumps drawn by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S
from trainer.engines.command.flight import flight_text, read_flights
from trainer.engines.command.injected_folder import INJECTED
from trainer.engines.command.stacks import stacks_here
from trainer.launchers.mailbox import write_whole
from trainer.launchers.processes import MARK

# Two ranks of gloo: rank 1 does not come to the second collective. `megatron.training.initialize` begins training.
HANGS = """
import datetime, os, sys, time
import torch, torch.distributed as dist
import megatron.training.initialize
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(
    "gloo", init_method=sys.argv[1], rank=rank, world_size=world, timeout=datetime.timedelta(hours=1)
)
one = torch.ones(4)
dist.all_reduce(one)
open(os.path.join(os.environ["MOE_AUTOTUNE_OUT"], f"ready{dist.get_rank()}"), "w").close()
if dist.get_rank() == 0:
    dist.all_gather([torch.ones(3), torch.ones(3)], torch.ones(3))
time.sleep(3600)
"""


@pytest.mark.faults
def test_two_real_ranks_tell_who_did_not_come_to_which_collective(tmp_path: Path) -> None:
    package = tmp_path / "megatron" / "training"
    package.mkdir(parents=True)
    for name in (package.parent / "__init__.py", package / "__init__.py", package / "initialize.py"):
        name.touch()
    (tmp_path / "hangs.py").write_text(HANGS)
    out = tmp_path / "ranks"
    out.mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(INJECTED), str(tmp_path)]),
        "MOE_AUTOTUNE_OUT": str(out),
        MARK: "test",
        "WORLD_SIZE": "2",
    }
    command = [sys.executable, str(tmp_path / "hangs.py"), f"file://{tmp_path}/store"]
    ranks = [
        subprocess.Popen(command, env=env | {"RANK": str(rank)}, stderr=(tmp_path / f"{rank}.txt").open("w"))
        for rank in (0, 1)
    ]
    try:
        _wait(lambda: all((out / f"ready{rank}").exists() for rank in (0, 1)))
        found = None
        while found is None:  # until rank 0 has gone on into the collective
            for flight in out.glob("*.flight.json"):
                flight.unlink()
            stacks_here(out, tmp_path, injected=True)
            _wait(lambda: len(list(out.glob("*.flight.json"))) == 2)
            found = flight_text(read_flights(out, 2))
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert found == (
        "flight recorder: rank 0 in all_gather (collective 2 of group default_pg), which rank 1 did not reach",
        1,
    )


def _wait(until: Any) -> None:
    deadline = time.monotonic() + HANG_S
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def entry(number: int, name: str, *, group: str = "ep", state: str = "completed", **fields: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": number, "profiling_name": f"nccl:{name}", "process_group": ["3", group], "state": state,
        "is_p2p": False, "retired": state == "completed", **fields,
    }  # fmt: skip


def left(folder: Path, rank: int, *entries: dict[str, Any], ranks: str = "[0, 1, 2]") -> None:
    config = {"3": {"name": "3", "desc": "ep", "ranks": ranks}}
    document = {"version": "2.10", "entries": list(entries), "pg_config": config, "nccl_comm_state": {}}
    write_whole(folder / f"rank{rank}.flight.json", json.dumps(document).encode())


def test_a_rank_in_another_collective_is_distinguished_from_one_that_did_not_arrive(tmp_path: Path) -> None:
    """Checks a dump as NCCL writes it, drawn by hand: there was no GPU."""
    left(tmp_path, 0, entry(7, "all_to_all"), entry(8, "all_to_all", state="started"))
    left(tmp_path, 1, entry(7, "all_to_all"), entry(8, "_all_gather_base", state="started"))
    left(tmp_path, 2, entry(7, "all_to_all"))
    said, rank = flight_text(read_flights(tmp_path, 3)) or ("", None)
    assert "rank 0 in all_to_all (collective 8 of group ep), which rank 2 did not reach" in said
    assert "while rank 1 is in _all_gather_base there" in said
    assert rank == 2


def test_an_incomplete_dump_or_one_without_a_waiting_rank_gives_nothing(tmp_path: Path) -> None:
    left(tmp_path, 0, entry(7, "all_to_all"))
    (tmp_path / "rank1.flight.json").write_text('{"entries": [')
    assert list(read_flights(tmp_path, 3)) == [0]
    assert flight_text(read_flights(tmp_path, 3)) is None
