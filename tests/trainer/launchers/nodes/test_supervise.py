"""Checks how the process between a tuner and Slurm ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from trainer.launchers.mailbox import agent_log
from trainer.launchers.nodes.supervise import run_last, start_supervise
from trainer.launchers.supervisor import exit_path


def test_how_the_command_ended_is_left_before_the_last_words(tmp_path: Path) -> None:
    killed = start_supervise(
        [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
        control=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        last_command=["cat", str(exit_path(tmp_path))],
        stays=False,
    )
    assert killed.wait() == 0
    assert agent_log(tmp_path).read_text() == exit_path(tmp_path).read_text() == "-9"


def test_last_words_that_hang_are_cut_short_and_that_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    run_last(["sleep", "600"], limit_s=0.05)
    assert capfd.readouterr().out == "no end after 0.05 s, given up: sleep 600\n"
