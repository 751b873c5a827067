"""Ranks of the fake worker, bursts by script, and the proof that nothing of a start is left."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.launchers.local import LocalLauncher, LocalProcesses
from trainer.launchers.processes import with_mark
from trainer.launchers.warm import WarmRanks, start_ranks

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
def launch(tmp_path: Path) -> Iterator[Callable[..., WarmRanks]]:
    """Yields a function that starts ranks; ends them after the test and fails if a process of theirs is left."""
    started: list[WarmRanks] = []

    def start(*, world_size: int = 2, module: str = "fake_worker", **asked: Any) -> WarmRanks:
        settings = {name: asked.pop(name) for name in ("python", "startup_s") if name in asked}
        ranks = start_ranks(
            LocalLauncher(),
            nodes=1,
            ranks_per_node=world_size,
            env={"PYTHONPATH": str(HERE), **asked},
            folder=tmp_path / "ranks",
            module=module,
            **settings,
        )
        started.append(ranks)
        return ranks

    yield start
    for ranks in started:
        ranks.end()
        assert with_mark(mark_of(ranks)) == []


def mark_of(ranks: WarmRanks) -> str:
    """Returns the mark that every process of the start has in its environment."""
    assert isinstance(ranks.processes, LocalProcesses)
    return ranks.processes.mark
