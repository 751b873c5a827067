"""Work in processes of their own: results, errors and deaths come back, and nothing stays behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from analyzers import TraceError, analyze, processes
from tests.analyzers.drawing import GEMM, Drawing
from tests.conftest import HANG_S
from tests.places import ROOT


def _square(number: int) -> int:
    return number * number


def _refuse(number: int) -> int:
    raise KeyError(f"no {number}")


def _die(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def _pause(number: int) -> int:
    signal.pause()
    return number


def _in_daemon(_: int) -> bool:
    return processes.can_start()


def test_each_item_is_answered_once_whatever_the_number_of_processes() -> None:
    for at_once in (1, 2, 20):
        assert dict(processes.each(_square, range(7), at_once=at_once)) == {n: n * n for n in range(7)}
    assert list(processes.each(_square, [], at_once=2)) == []


def test_what_is_raised_in_a_process_is_raised_here_with_its_place() -> None:
    with pytest.raises(KeyError, match="no 3") as raised:
        list(processes.each(_refuse, [3], at_once=2))
    assert "_refuse" in "".join(raised.value.__notes__)
    assert not multiprocessing.active_children()


def test_a_killed_process_is_reported_and_the_others_continue() -> None:
    found = dict(processes.each(_die, [1, 2, 3], at_once=2))
    assert found == {1: 1, 2: processes.Died(exit_code=-signal.SIGKILL), 3: 3}


def test_ending_early_ends_all_processes() -> None:
    answers = processes.each(_first_only, [0, 1, 2], at_once=3)
    assert next(answers) == (0, 0)
    assert len(multiprocessing.active_children()) == 2
    answers.close()
    assert not multiprocessing.active_children()


def _first_only(number: int) -> int:
    return _pause(number) if number else number


def test_a_daemon_may_not_start_processes() -> None:
    assert processes.can_start()
    assert dict(processes.each(_in_daemon, [1], at_once=1)) == {1: False}


def test_processes_end_with_a_parent_that_is_killed() -> None:
    script = (
        "import os, signal\n"
        "from analyzers import processes\n"
        "def work(n):\n"
        "    if n == 0: return os.getpid()\n"
        "    signal.pause()\n"
        "answers = processes.each(work, [0, 1, 2], at_once=3)\n"
        "next(answers)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT, text=True)
    run.communicate(timeout=HANG_S)  # returns when the last process has closed its end of the pipe
    assert run.returncode == -signal.SIGKILL


def test_a_trace_whose_process_is_killed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [Drawing(rank=rank).step(1, 0, 9).kernel(GEMM, 1, 8).write(tmp_path) for rank in (0, 1)]
    monkeypatch.setattr("analyzers.analysis.WORTH_A_PROCESS_BYTES", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert len(analyze(paths).traces) == 2
    monkeypatch.setattr("analyzers.analysis.read", lambda path: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(TraceError, match="was killed") as raised:
        analyze(paths)
    assert raised.value.path == paths[0]
    assert "memory" in raised.value.hint


def test_ctrl_c_while_a_process_starts_ends_that_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    start = ForkProcess.start

    def interrupted(process: ForkProcess) -> None:
        start(process)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ForkProcess, "start", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            list(processes.each(_pause, [0], at_once=1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not multiprocessing.active_children()


def test_ctrl_c_ends_at_once_and_quietly(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from analyzers import processes\n"
        "def work(n):\n"
        "    if n == 0: os.killpg(0, signal.SIGINT)\n"
        "    signal.pause()\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background ignores it
        "try:\n"
        "    list(processes.each(work, [1, 0], at_once=2))\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, start_new_session=True, timeout=HANG_S)
    assert (run.returncode, run.stderr) == (130, "")
