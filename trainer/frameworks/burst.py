"""The request by which engine `command` asks a framework for a burst's command, and the names of the files it uses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.frameworks.bounds import Bounds
from trainer.recipe import Recipe
from trainer.recipe.sections import TrainerSettings

# names in a burst's folder: the command of a rank, and the folder that the trainer writes to
COMMAND, WRITTEN = "command.txt", "trainer"


@dataclass(frozen=True, kw_only=True)
class BurstRequest:
    """A recipe to run for the iterations of `bounds`, with `ranks` traced; the trainer may write to `folder`."""

    recipe: Recipe
    trainer: TrainerSettings
    bounds: Bounds
    ranks: tuple[int, ...]
    folder: Path

    @property
    def torch_trace(self) -> bool:
        return bool(self.bounds.traced) and self.trainer.trace == "torch"

    @property
    def nsys_trace(self) -> bool:
        return bool(self.bounds.traced) and self.trainer.trace == "nsys"
