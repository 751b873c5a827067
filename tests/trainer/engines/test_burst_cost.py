"""Checks the cost of a burst as its engine reports it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.policies.drawn import cpu_recipe
from trainer.burst import Burst, Failure, FailureKind, Outcome
from trainer.engines.megatron import engine as megatron
from trainer.engines.megatron.engine import MegatronEngine
from trainer.launchers import RankResult

STARTING_S, RUNNING_S, ENDING_S = 20.0, 30.0, 5.0
CRASH = Failure(kind=FailureKind.CRASH, evidence="a rank is gone")


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeRanks:
    """Ranks that take their time to start, run and end; started as a launcher starts them."""

    queued_s = 0.0

    clock: Clock
    failure: Failure | None = None
    alive: bool = True
    asked: int = 0

    def start(self, *asked: Any, **settings: Any) -> FakeRanks:
        return self

    def run(self, folder: Path, *, deadline_s: float) -> RankResult:
        self.clock.now += RUNNING_S + (STARTING_S if self.asked == 0 else 0.0)
        self.asked += 1
        return RankResult(reports=(), failure=self.failure)

    def end(self) -> None:
        self.clock.now += ENDING_S


def bursts(folder: Path, monkeypatch: pytest.MonkeyPatch, failure: Failure | None) -> list[Outcome]:
    clock = Clock()
    ranks = FakeRanks(clock, failure)
    monkeypatch.setattr(megatron, "start_ranks", ranks.start)
    engine = MegatronEngine(folder / "engine", clock=clock)
    return [engine.run(Burst(number=n, recipe=cpu_recipe(), folder=folder / str(n))) for n in (1, 2)]


def test_a_burst_costs_from_its_start_to_its_end_with_the_start_of_its_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, warm = bursts(tmp_path, monkeypatch, None)
    assert (cold.cost_s, warm.cost_s) == (STARTING_S + RUNNING_S, RUNNING_S)
    assert json.loads((tmp_path / "1" / "outcome.json").read_text())["cost_s"] == cold.cost_s


def test_a_burst_that_fails_costs_until_its_ranks_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = bursts(tmp_path, monkeypatch, CRASH)
    assert (first.failure, first.cost_s) == (CRASH, STARTING_S + RUNNING_S + ENDING_S)
