"""Ranks on two hosts over a real sshd: warm between bursts, every fault named, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG_S
from tests.places import ROOT
from tests.trainer.launchers.hosts.conftest import await_end, launcher_at
from tests.trainer.launchers.hosts.machines import Hosts
from tests.trainer.launchers.slurm.test_engines_on_slurm import TRAINER, module_loaded, trained, with_trainer
from tests.trainer.launchers.two_nodes import (
    FAULTS,
    KEEPER_KILLED,
    Case,
    Launch,
    MakeBurst,
    processes_of,
    stay_up,
    until,
)
from trainer.burst import FailureKind
from trainer.engines.command.injected_folder import INJECTED
from trainer.errors import ToolError
from trainer.launchers.nodes import folder as notes
from trainer.launchers.nodes.avoid import avoid
from trainer.launchers.processes import descendants, send, with_mark

pytestmark = pytest.mark.slurm


def test_ranks_of_two_hosts_stay_up_between_bursts(
    hosts: Hosts, launch_on_hosts: Launch, make_burst: MakeBurst
) -> None:
    ranks = launch_on_hosts(torch=True)
    stay_up(ranks, make_burst)
    came = list(notes.started_nodes(ranks.control, 2))
    assert [each.host for each in came] == hosts.names
    assert [each.address for each in came] == hosts.addresses
    # the tests below count processes by mark: keepers, agents and ranks of both hosts have that of their start
    found = [
        Path(f"/proc/{process.pid}/cmdline").read_bytes().decode() for process in with_mark(processes_of(ranks).mark)
    ]
    assert sum("nodes.keeper" in each for each in found) >= 2
    assert sum("fake_worker" in each and "torch" not in each for each in found) == 4


CASES = FAULTS | {
    "the keeper of the second host is killed": Case(
        acts=KEEPER_KILLED,
        kind=FailureKind.INFRASTRUCTURE,
        evidence="node h2: host h2 was lost: ssh ended with 255",
        avoids=1,
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_a_fault_on_a_host_is_named_and_leaves_nothing(
    case: Case, hosts: Hosts, launch_on_hosts: Launch, make_burst: MakeBurst, tmp_path: Path
) -> None:
    ranks = launch_on_hosts()
    failure = ranks.run(make_burst(case.acts), deadline_s=case.deadline_s).failure
    await_end(ranks)
    case.holds(failure, folder=tmp_path, nodes=hosts.names)


TUNER = """
import sys
from pathlib import Path
from tests.trainer.launchers.two_nodes import fake_ranks
from trainer.launchers.hosts.launcher import HostsLauncher
from trainer.recipe.launching import HostsSettings

folder, ssh = Path(sys.argv[1]), tuple(sys.argv[2:])
ranks = fake_ranks(HostsLauncher(settings=HostsSettings(hosts=("h1", "h2"), ssh=ssh), home=folder / "home"), folder)
ranks.run(folder / "burst", deadline_s=300)
print(ranks.processes.mark, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("alone", [True, False])
def test_a_killed_tuner_leaves_nothing_on_any_host(alone: bool, hosts: Hosts, tmp_path: Path) -> None:
    """Kills the tuner alone, and with every process that it started on its own machine."""
    (tmp_path / "burst").mkdir()
    (tmp_path / "burst/acts.json").write_text('{"0": [["grandchild", "kept"]]}')
    argv = [sys.executable, "-c", TUNER, str(tmp_path), *hosts.ssh]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        mark = tuner.stdout.readline().strip()
        assert len(with_mark(mark)) > 6
        for process in [] if alone else descendants(tuner.pid):
            send(process, signal.SIGKILL)
        tuner.kill()
    until(lambda: not with_mark(mark))


def test_what_a_tuner_that_is_gone_left_is_ended_by_the_next_start(
    launch_on_hosts: Launch, make_burst: MakeBurst
) -> None:
    left = launch_on_hosts()
    assert left.run(make_burst({}), deadline_s=HANG_S).failure is None
    ranks = launch_on_hosts()
    assert all(notes.node_end_path(left.control, node).exists() for node in range(2))
    assert ranks.run(make_burst({}), deadline_s=HANG_S).failure is None


def test_a_spare_host_takes_the_place_of_one_to_avoid(hosts: Hosts, tmp_path: Path) -> None:
    launcher = launcher_at(hosts, tmp_path)
    assert launcher.hosts(1) == ["h1"]
    avoid(tmp_path / "home", "h1", "it fell")
    assert launcher.hosts(1) == ["h2"]
    assert launcher.hosts(2) == ["h1", "h2"]
    with pytest.raises(ToolError, match=r"asks for 3 nodes, and burst.launcher.hosts names 2"):
        launcher.hosts(3)


def test_a_host_that_does_not_let_us_in_is_refused_with_its_words(
    hosts: Hosts, launch_on_hosts: Launch, make_burst: MakeBurst
) -> None:
    with pytest.raises(ToolError, match=r"no keeper can be started on h[12]: .*Permission denied"):
        launch_on_hosts(ssh=("-l", "nobody", *hosts.ssh)).run(make_burst({}), deadline_s=HANG_S)


def test_a_host_without_our_python_is_refused(hosts: Hosts, launch_on_hosts: Launch, make_burst: MakeBurst) -> None:
    with pytest.raises(ToolError, match=r"no keeper can be started on h.: .*No such file or directory"):
        launch_on_hosts(python="/nowhere/python").run(make_burst({}), deadline_s=HANG_S)


def test_a_host_that_is_down_is_the_machines_fault(
    hosts: Hosts, launch_on_hosts: Launch, make_burst: MakeBurst
) -> None:
    failure = launch_on_hosts(ssh=("-p", "9", *hosts.ssh)).run(make_burst({}), deadline_s=HANG_S).failure
    assert failure is not None
    assert failure.kind is FailureKind.INFRASTRUCTURE
    assert failure.node in ("h1", "h2")  # no ssh answers on either: the one that is refused first


def test_a_trainer_of_the_users_runs_behind_its_setup_on_every_host(
    light_agent: None, hosts: Hosts, tmp_path: Path
) -> None:
    launcher = {"hosts": hosts.names, "ssh": list(hosts.ssh)}
    acts = json.dumps({"tell": ["MODULE", "PYTHONPATH"]})
    command = [sys.executable, os.path.relpath(TRAINER), acts]  # counted from where the tuner is
    outcome = trained(tmp_path, with_trainer({}, launcher, command=command, setup=module_loaded(tmp_path)))
    assert outcome.failure is None
    for rank in range(2):
        said = (tmp_path / f"0001/log/rank{rank}.log").read_text()
        assert f"env {rank} MODULE=cuda" in said
        assert f"env {rank} PYTHONPATH={INJECTED}" in said
