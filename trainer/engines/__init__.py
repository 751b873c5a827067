"""Engines, which run bursts. An engine is one file or folder here and one row in `trainer.recipe.engines`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Protocol, runtime_checkable

from trainer.burst import Burst, Outcome
from trainer.recipe.engines import ENGINES


class Engine(Protocol):
    """Runs bursts, one at a time.

    `run` never raises for what training does: that is the `failure` of the outcome. It creates the burst's folder and
    leaves `burst.json`, `outcome.json`, `steps.jsonl`, `log/` and, if steps were traced, `trace/` in it. `close` ends
    every process that the engine started; it may be called twice.
    """

    def run(self, burst: Burst) -> Outcome: ...

    def close(self) -> None: ...


@runtime_checkable
class Adopting(Protocol):
    """An engine whose bursts may outlive the tuner.

    `adopt` takes over a burst that an earlier tuner started and waits for its end; returns None if nothing of it is
    left.
    """

    def adopt(self, burst: Burst) -> Outcome | None: ...


def open_engine(name: str, state_dir: Path) -> Engine:
    """Returns the engine that a recipe names.

    Raises KeyError if there is none (the rules of recipes report that first).
    """
    module, factory = ENGINES[name].split(":")
    engine: Engine = getattr(import_module(module), factory)(state_dir)
    return engine
