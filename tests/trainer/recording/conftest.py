"""Says in which isolations hostile lines were tried: a mode that was skipped is none of them."""

from __future__ import annotations

from typing import Any

from tests.trainer.recording.modes import MODES


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"hostile lines were tried in: {', '.join(MODES) or 'no isolation'}")
