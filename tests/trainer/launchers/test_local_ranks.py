"""Ranks that do well: warm between bursts, each burst's log its own, ended politely."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import HANG_S
from tests.places import LIGHT
from tests.trainer.launchers.conftest import HERE, mark_of
from trainer.launchers import mailbox
from trainer.launchers.local import rank_environment, torchrun_command
from trainer.launchers.processes import OWNER, owner_from, this_process, with_mark
from trainer.launchers.supervisor import exit_path
from trainer.launchers.warm import WarmRanks


def test_ranks_stay_up_between_bursts_and_end_by_themselves(
    launch: Callable[..., WarmRanks], make_burst: Callable[..., Path]
) -> None:
    ranks = launch()
    pids = []
    for number in range(3):
        folder = make_burst({0: [["say", f"burst {number}"]]})
        result = ranks.run(folder, deadline_s=HANG_S)
        assert result.failure is None
        assert [report.rank for report in result.reports] == [0, 1]
        assert (folder / "log" / "rank0.log").read_text() == f"burst {number}\n"
        assert ranks.alive
        pids.append([mailbox.arrived(ranks.control, rank) for rank in range(2)])
    assert pids[0] == pids[1] == pids[2]

    ranks.end()

    assert not ranks.alive
    assert exit_path(ranks.control).read_text() == "0"
    assert with_mark(mark_of(ranks)) == []


def test_a_second_attempt_in_a_burst_folder_does_not_read_the_first_ones_reports(
    launch: Callable[..., WarmRanks], make_burst: Callable[..., Path]
) -> None:
    folder, light = make_burst({0: [["fail", "RuntimeError", "once"]]}), f"{LIGHT}:{HERE}"  # an agent without torch
    failed = launch(world_size=1, PYTHONPATH=light).run(folder, deadline_s=HANG_S)
    assert failed.failure is not None
    (folder / "acts.json").write_text("{}")
    again = launch(world_size=1, PYTHONPATH=light).run(folder, deadline_s=HANG_S)
    assert again.failure is None


def test_the_command_has_a_static_rendezvous_and_no_restarts() -> None:
    command = torchrun_command(["python", "-m", "trainer.worker", "/c"], ranks=4, port=1234, control=Path("/c"))
    text = " ".join(command)
    assert "--nproc-per-node 4" in text
    assert "--max-restarts 0" in text
    assert "--master-addr 127.0.0.1 --master-port 1234" in text
    assert "rdzv" not in text
    assert text.endswith("--no-python python -m trainer.worker /c")


def test_ranks_are_marked_with_their_owner_and_find_our_packages() -> None:
    env = rank_environment({"PYTHONPATH": "/mine", "A": "1"}, mark="m")
    assert owner_from(env[OWNER]) == this_process()
    assert env["PYTHONPATH"].split(":")[-1] == "/mine"
    assert (Path(env["PYTHONPATH"].split(":")[0]) / "trainer" / "worker.py").exists()
    assert env["A"] == "1"
