"""A run that is interrupted inside a library, which raises another error instead."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.looks.reasons import end_text
from autotune.tuning.journal import read_study
from autotune.tuning.loop import Loop
from tests.autotune.outside import SIMULATED


def test_an_error_that_hides_an_interruption_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Loop) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise TypeError("the DTypes do not have a common dtype") from error

    monkeypatch.setattr(Loop, "run", interrupted)
    (tmp_path / "base.yaml").write_text(SIMULATED)
    assert main(["run", str(tmp_path / "base.yaml"), "--study", str(tmp_path / "study")]) == 130
    ended = read_study(tmp_path / "study").ended
    assert ended is not None
    assert (ended.status, end_text(ended)) == ("interrupted", "ended by TERM")
