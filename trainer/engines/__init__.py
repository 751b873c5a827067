"""Engines: what runs one burst. An engine is one file or folder here and one row in `trainer.recipe.engines`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from trainer.burst import Burst, Outcome
from trainer.recipe.engines import ENGINES


class Engine(Protocol):
    """Runs bursts, one at a time. `run` never raises for what training does: that is the outcome's `failure`.

    It makes the burst's folder and leaves there `burst.json`, `outcome.json`, `steps.jsonl`, `log/` and, where
    steps were traced, `trace/`. `close` ends every process the engine started; it may be called twice.
    """

    def run(self, burst: Burst) -> Outcome: ...

    def close(self) -> None: ...


@runtime_checkable
class Adopting(Protocol):
    """Engine whose bursts may outlive the tuner. `adopt` takes over what an earlier tuner started of the burst and
    waits for its end; None where nothing of it is left."""

    def adopt(self, burst: Burst) -> Outcome | None: ...


def open_engine(name: str, state_dir: Path) -> Engine:
    """Returns the engine a recipe names. KeyError if there is none (the recipe's rules catch that first)."""
    module, factory = ENGINES[name].split(":")
    engine: Engine = getattr(import_module(module), factory)(state_dir)
    return engine
