"""Checks the messages between a worker and its launcher, without processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.conftest import HANG_S
from trainer.launchers import mailbox
from trainer.launchers.oom_kills import oom_kills
from trainer.launchers.processes import this_process
from trainer.rank_report import RankReport


@pytest.fixture(autouse=True)
def output_stays_put(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "log_to", lambda path: None)


def test_requests_come_in_order_until_the_stop(tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.mkdir()
    mailbox.post(control, 0, mailbox.Request(burst="/bursts/a"))
    mailbox.post(control, 1, mailbox.Request(burst="/bursts/b"))
    mailbox.post(control, 2, mailbox.Request(stop=True))
    assert not mailbox.is_ready(control, 3)
    gc.disable()
    assert list(mailbox.requests(control, 3)) == [Path("/bursts/a"), Path("/bursts/b")]
    assert gc.isenabled()  # what was imported before was not searched for garbage
    assert mailbox.is_ready(control, 3)


def test_a_rank_waits_for_the_next_request(tmp_path: Path) -> None:
    got: list[Path] = []
    waiting = threading.Thread(target=lambda: got.extend(mailbox.requests(tmp_path, 0)))
    waiting.start()
    mailbox.post(tmp_path, 0, mailbox.Request(burst="/bursts/a"))
    mailbox.post(tmp_path, 1, mailbox.Request(stop=True))
    waiting.join(timeout=HANG_S)
    assert got == [Path("/bursts/a")]


def test_a_rank_ends_when_the_control_folder_is_gone(tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.mkdir()
    waiting = threading.Thread(target=lambda: list(mailbox.requests(control, 0)))
    waiting.start()
    while not mailbox.is_ready(control, 0):
        pass
    (control / "rank0.ready").unlink()
    control.rmdir()
    waiting.join(timeout=HANG_S)
    assert not waiting.is_alive()


def test_a_report_arrives_whole(tmp_path: Path) -> None:
    assert mailbox.report_of(tmp_path, 1) is None
    report = RankReport(rank=1, step_us=[1.5], loss=[0.5])
    mailbox.reply(tmp_path, report)
    assert mailbox.report_of(tmp_path, 1) == report
    assert [path.name for path in (tmp_path / "ranks").iterdir()] == ["rank1.json"]


def test_a_killed_rank_leaves_the_lines_that_it_had_printed(tmp_path: Path) -> None:
    script = """if True:
        import os, signal, sys
        from pathlib import Path
        from trainer.launchers.mailbox import log_to
        log_to(Path(sys.argv[1]))
        print("step 7")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", script, str(tmp_path / "rank0.log")]
    with (tmp_path / "start.log").open("wb") as start:
        subprocess.run(command, env=buffered, stdout=start, check=False)
    assert (tmp_path / "rank0.log").read_text() == "step 7\n"


def test_an_arrival_names_the_process(tmp_path: Path) -> None:
    assert mailbox.arrived(tmp_path, 0) is None
    me = this_process()
    mailbox.write_whole(tmp_path / "rank0.pid", f"{me.pid} {me.started}".encode())
    assert mailbox.arrived(tmp_path, 0) == me


def test_a_process_whose_parent_is_already_gone_ends_at_once() -> None:
    pid = os.fork()
    if pid == 0:
        mailbox.die_with_parent(os.getppid() + 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 127


def test_oom_kills_are_counted_by_our_own_cgroup_if_it_reports_them(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/job\n")
    (tmp_path / "proc" / "vmstat").write_text("nr_free_pages 1\noom_kill 7\n")
    assert oom_kills(cgroups=tmp_path / "cgroup", proc=tmp_path / "proc") == 7
    (tmp_path / "cgroup" / "job").mkdir(parents=True)
    (tmp_path / "cgroup" / "job" / "memory.events").write_text("oom 2\noom_kill 1\n")
    assert oom_kills(cgroups=tmp_path / "cgroup", proc=tmp_path / "proc") == 1
    assert oom_kills(cgroups=tmp_path / "no", proc=tmp_path / "none") == 0


def test_oom_kills_of_a_first_cgroup_are_not_those_of_the_whole_machine(tmp_path: Path) -> None:
    proc, memory = tmp_path / "proc", tmp_path / "cgroup/memory"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("4:memory:/slurm/job_7\n3:cpu:/\n0::/\n")
    (proc / "vmstat").write_text("oom_kill 7\n")
    (memory / "slurm/job_7").mkdir(parents=True)
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert oom_kills(cgroups=tmp_path / "cgroup", proc=proc) == 2  # a container's: its path is not seen from inside
    (memory / "slurm/job_7/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert oom_kills(cgroups=tmp_path / "cgroup", proc=proc) == 1
