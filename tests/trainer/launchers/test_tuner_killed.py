"""The tuner itself is killed by SIGKILL, at any moment: its ranks and all their children go with it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import HANG_S
from trainer.launchers.processes import OWNER, Process, descendants, end_all, marked, owner_from, status_of, sweep

TUNER = Path(__file__).parent / "tuner.py"
AT_ONCE = 5  # tuners that run side by side: they mostly import
EACH_S = 1.0  # one is killed in every such stretch; in the last ones ranks are up and bursts run


@dataclass(frozen=True, kw_only=True)
class Tuner:
    popen: subprocess.Popen[bytes]
    process: Process
    folder: Path
    kill_at_s: float


def start(folder: Path, kill_at_s: float) -> Tuner:
    folder.mkdir()
    popen = subprocess.Popen([sys.executable, str(TUNER), str(folder)], stderr=subprocess.DEVNULL)
    status = status_of(popen.pid)
    assert status is not None
    return Tuner(popen=popen, process=status.process, folder=folder, kill_at_s=kill_at_s)


def left_by(tuners: list[Tuner]) -> list[Process]:
    """Returns what lives of the processes that the tuners marked and of the grandchildren that they noted, some of
    which have no mark: a marked one may have been ended by another tuner's sweep."""
    owners = {tuner.process for tuner in tuners}
    ours = [process for process, env in marked() if owner_from(env.get(OWNER, "")) in owners]
    statuses = [status_of(pid) for tuner in tuners for pid in grandchildren(tuner.folder)]
    return ours + [status.process for status in statuses if status is not None and not status.dead]


def grandchildren(folder: Path) -> list[int]:
    return [int(text) for note in folder.glob("*/grandchild*.pid") if (text := note.read_text())]


@pytest.mark.faults
@pytest.mark.parametrize("wave", range(2))
def test_a_tuner_killed_at_a_random_moment_leaves_nothing(wave: int, tmp_path: Path) -> None:
    draw = random.Random(wave)
    moments = [EACH_S * (number + draw.random()) for number in range(AT_ONCE)]
    started = time.monotonic()
    tuners = [start(tmp_path / str(number), moment) for number, moment in enumerate(moments)]
    for tuner in tuners:
        time.sleep(max(0.0, started + tuner.kill_at_s - time.monotonic()))
        assert tuner.popen.poll() is None
        tuner.popen.kill()
        tuner.popen.wait()
    give_up = time.monotonic() + HANG_S
    while (left := left_by(tuners)) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert left == []


@pytest.mark.faults
def test_a_sweep_before_the_supervisor_has_seen_the_tuner_die_leaves_nothing(tmp_path: Path) -> None:
    tuner = start(tmp_path / "tuner", 0.0)
    give_up = time.monotonic() + HANG_S
    while not (tuner.folder / f"{1:06d}").exists() and time.monotonic() < give_up:  # the first burst is over
        time.sleep(0.02)
    started = set(grandchildren(tuner.folder))
    family = descendants(tuner.popen.pid)
    supervisor = next(process.pid for process in family if parent_of(process) == tuner.popen.pid)
    assert started
    assert started <= {process.pid for process in family}
    os.kill(supervisor, signal.SIGSTOP)  # it sees nothing at all: the sweep is always first
    tuner.popen.kill()
    tuner.popen.wait()
    sweep()
    left = left_by([tuner])
    end_all(lambda: left_by([tuner]))
    assert left == []


def parent_of(process: Process) -> int:
    status = status_of(process.pid)
    return 0 if status is None else status.parent
