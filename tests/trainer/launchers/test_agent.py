"""The agent: a rank has what torchrun gives it, and a failure is named in torchrun's words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainer.launchers.agent import agent_command, outputs_in, reported_deaths
from trainer.launchers.ports import free_port

TELL = "import json, os; print(json.dumps(dict(os.environ)))"
# the store is rank 0's; nobody reads torch's file of errors; signals of torchrun itself
DIFFERENT = {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}


def agent(control: Path, script: str, **place: Any) -> subprocess.Popen[str]:
    """Starts the agent of two ranks of a shell script."""
    command = agent_command(["bash", "-c", script], ranks=2, port=free_port("127.0.0.1"), control=control, **place)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def said(control: Path, rank: int) -> str:
    return "".join(path.read_text() for path in outputs_in(control, rank))


def test_ranks_of_the_second_node_know_their_place_and_write_to_files_of_their_own(tmp_path: Path) -> None:
    script = "echo $RANK $LOCAL_RANK $GROUP_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR; echo late >&2"
    started = agent(tmp_path, script, nodes=3, node=1, address="10.0.0.1")
    assert started.wait() == 0
    assert [said(tmp_path, rank) for rank in (0, 1)] == ["2 0 1 6 2 10.0.0.1\nlate\n", "3 1 1 6 2 10.0.0.1\nlate\n"]


def test_the_rank_that_failed_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    up = tmp_path / "up"
    fails = f"until [ -e {up} ]; do sleep 0.01; done; exit 3"
    started = agent(
        tmp_path, f"[ $RANK = 0 ] || {{ {fails}; }}; trap 'echo asked; exit 0' TERM; touch {up}; sleep 1000 & wait"
    )
    assert reported_deaths(started.communicate()[0]) == {1: 3}
    assert started.returncode == 1
    assert said(tmp_path, 0) == "asked\n"


def test_an_agent_that_is_asked_to_end_asks_its_ranks(tmp_path: Path) -> None:
    started = agent(tmp_path, "trap 'echo asked; exit 0' TERM; echo up; sleep 1000 & wait")
    while [said(tmp_path, rank) for rank in (0, 1)] != ["up\n"] * 2:
        assert started.poll() is None
        time.sleep(0.02)
    started.send_signal(signal.SIGTERM)
    assert "SIGTERM" in started.communicate()[0]
    assert started.returncode == 1
    assert [said(tmp_path, rank) for rank in (0, 1)] == ["up\nasked\n"] * 2


@pytest.mark.thorough
def test_a_rank_has_the_variables_that_torchrun_gives(tmp_path: Path) -> None:
    tell = [sys.executable, "-c", TELL]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    port = free_port("127.0.0.1")
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--node-rank", "0", "--nproc-per-node", "2"),
        *("--master-addr", "127.0.0.1", "--master-port", str(port), "--log-dir", str(tmp_path / "torchrun")),
        *("--redirects", "3", "--no-python", *tell),
    ]
    ours = agent_command(tell, ranks=2, port=port, control=tmp_path)
    for command in (torchrun, ours):
        subprocess.run(command, env=env, check=True, capture_output=True)
    for rank in (0, 1):
        (theirs,) = (tmp_path / "torchrun").glob(f"*/attempt_0/{rank}/stdout.log")
        wanted, given = json.loads(theirs.read_text()), json.loads(said(tmp_path, rank))
        assert {name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name)} <= DIFFERENT
        assert given["TORCHELASTIC_USE_AGENT_STORE"] == "False"
