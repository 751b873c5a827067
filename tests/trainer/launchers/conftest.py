"""Ranks of the fake worker, bursts by script, and the proof that nothing of a start is left."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.launchers.local import LocalLauncher, LocalRanks
from trainer.launchers.processes import with_mark

HERE = Path(__file__).parent
Acts = dict[int, list[list[Any]]]


@pytest.fixture
def make_burst(tmp_path: Path) -> Callable[[Acts], Path]:
    numbers = itertools.count()

    def make(acts: Acts) -> Path:
        folder = tmp_path / "bursts" / f"{next(numbers):04d}"
        folder.mkdir(parents=True)
        (folder / "acts.json").write_text(json.dumps(acts))
        return folder

    return make


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., LocalRanks]]:
    """Starts ranks; at the end of the test none of their processes is left, and the test did not have to do it."""
    started: list[LocalRanks] = []

    def start(
        launcher: LocalLauncher | None = None, *, world_size: int = 2, module: str = "fake_worker", **env: str
    ) -> LocalRanks:
        paths = {"PYTHONPATH": str(HERE)}
        started.append(
            (launcher or LocalLauncher()).start(
                world_size=world_size, env={**paths, **env}, folder=tmp_path / "ranks", module=module
            )
        )
        return started[-1]

    yield start
    for ranks in started:
        ranks.end()
        assert with_mark(ranks.mark) == []
