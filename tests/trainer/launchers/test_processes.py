"""Processes are known by pid and start time, and only what a dead tuner left is swept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainer.launchers.processes import (
    MARK,
    OWNER,
    Process,
    descendants,
    end_all,
    is_alive,
    owner_from,
    owner_text,
    send,
    status_of,
    sweep,
    this_process,
    with_mark,
)

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def sleeper() -> Iterator[Start]:
    """Starts processes that sleep, marked as asked; ends them with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**env: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"], **env}))
        return started[-1]

    yield start
    for popen in started:
        popen.kill()
        popen.wait()


def process_of(popen: subprocess.Popen[Any]) -> Process:
    status = status_of(popen.pid)
    assert status is not None
    return status.process


def dead_process() -> Process:
    """Returns a process that no longer exists and had our pid."""
    me = this_process()
    return Process(pid=me.pid, started=me.started - 1)


def test_a_process_is_alive_until_it_is_killed_even_before_it_is_waited_for(sleeper: Start) -> None:
    popen = sleeper()
    process = process_of(popen)
    assert is_alive(process)
    popen.kill()
    os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
    status = status_of(popen.pid)
    assert status is not None
    assert status.dead
    assert os.waitstatus_to_exitcode(status.wait_status) == -signal.SIGKILL
    assert not is_alive(process)
    popen.wait()
    assert status_of(popen.pid) is None


def test_a_pid_used_again_is_not_signalled(sleeper: Start) -> None:
    popen = sleeper()
    now = process_of(popen)
    send(Process(pid=now.pid, started=now.started - 1), signal.SIGKILL)
    assert is_alive(now)


def test_a_stopped_process_shows_and_can_be_ended(sleeper: Start) -> None:
    popen = sleeper(**{MARK: "stopped"})
    popen.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, popen.pid, os.WSTOPPED | os.WNOWAIT)
    status = status_of(popen.pid)
    assert status is not None
    assert status.stopped
    assert end_all(lambda: with_mark("stopped")) == []
    assert not is_alive(status.process)


def test_descendants_are_found_through_children_without_an_environment() -> None:
    script = (
        "import subprocess,sys; p = subprocess.Popen(['sleep', '1000'], env={}); print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        found = descendants(os.getpid())
        assert {parent.pid, grandchild} <= {process.pid for process in found}
        assert end_all(lambda: [p for p in descendants(os.getpid()) if p.pid in (parent.pid, grandchild)]) == []


def test_end_all_gives_up_at_its_deadline_and_says_who_is_left() -> None:
    unkillable = Process(pid=1, started=-1)
    assert end_all(lambda: [unkillable], deadline_s=0.0) == [unkillable]


def test_an_owner_survives_being_written_down() -> None:
    assert owner_from(owner_text(this_process())) == this_process()


def test_an_owner_on_another_machine_is_nobody_although_namespaces_have_the_same_numbers_everywhere() -> None:
    here, _, boot = owner_text(this_process()).rpartition(":")
    assert owner_from(f"{here}:{boot[::-1]}") is None


@pytest.mark.parametrize("text", ["", "12", "12:34", "a:b:c", "12:34:[1]"])
def test_an_owner_that_is_malformed_or_of_another_container_is_nobody(text: str) -> None:
    assert owner_from(text) is None


def test_sweep_ends_what_a_dead_tuner_left_and_nothing_else(sleeper: Start) -> None:
    orphan = sleeper(**{MARK: "m1", OWNER: owner_text(dead_process())})
    ours = sleeper(**{MARK: "m2", OWNER: owner_text(this_process())})
    elsewhere = sleeper(**{MARK: "m3", OWNER: "1:1:[1]"})
    unmarked = sleeper(**{OWNER: owner_text(dead_process())})

    assert orphan.pid in {process.pid for process in sweep()}

    assert orphan.wait() == -signal.SIGKILL
    assert [popen.poll() for popen in (ours, elsewhere, unmarked)] == [None, None, None]
    assert orphan.pid not in {process.pid for process in sweep()}


def test_sweep_ends_children_that_wiped_their_environment_before_the_one_that_adopts_them() -> None:
    script = (
        "import subprocess,sys,time; p = subprocess.Popen(['sleep', '1000'], env={}); "
        "print('started', flush=True); time.sleep(1000)"
    )
    env = {"PATH": os.environ["PATH"], MARK: "m4", OWNER: owner_text(dead_process())}
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        family = [*descendants(parent.pid), process_of(parent)]
        ended = sweep()
        assert end_all(lambda: filter(is_alive, family)) == []
    assert len(family) == 2
    assert [process for process in ended if process in family] == family
