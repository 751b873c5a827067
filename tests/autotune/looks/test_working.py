"""A terminal that waits says what for; other outputs stay empty, and the line is cleared."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.looks.working import counting, working
from tests.places import ROOT


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_what_takes_long_and_clears_the_line() -> None:
    terminal = Terminal()
    with working("layouts are ranked", stream=terminal, after_s=0.0):
        while "layouts are ranked" not in terminal.getvalue():
            time.sleep(0.01)
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_processed_items_are_counted() -> None:
    terminal = Terminal()
    with counting("reading traces", stream=terminal, after_s=0.0) as advance:
        advance(3, 64)
    assert "\rreading traces: 3 of 64, 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_short_work_and_outputs_that_are_no_terminal_show_nothing() -> None:
    soon, file = Terminal(), io.StringIO()
    for stream, after in ((soon, 60.0), (file, 0.0)):
        with working("work", stream=stream, after_s=after), counting("pieces", stream=stream, after_s=after) as advance:
            advance(1, 2)
            time.sleep(0.3)
        assert stream.getvalue() == ""


def test_an_error_inside_comes_out_and_the_line_goes() -> None:
    terminal = Terminal()

    def fail() -> None:
        with counting("reading traces", stream=terminal, after_s=0.0) as advance:
            advance(1, 2)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_dry_run_on_a_terminal_is_not_silent(tmp_path: Path) -> None:
    """The terminal is stderr, so that stdout holds the document alone."""
    (tmp_path / "r.yaml").write_text("model: qwen3-30b-a3b\ncluster: {gpu: h100, nodes: 2}\nparallelism: {ep: 8}\n")
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "autotune.cli", "run", "r.yaml", "--dry-run", "--json"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    document, _ = run.communicate()
    assert run.returncode == 0
    assert b"ranking legal layouts and settings, " in said
    assert document.startswith(b'{"schema":1')
