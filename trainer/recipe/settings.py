"""Interface of a recipe for rules and estimates; `Recipe`, and `View` of a table's row, implement it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from trainer.recipe.architecture import Architecture
from trainer.recipe.hardware import Hardware
from trainer.recipe.sections import (
    BurstSettings,
    Cluster,
    KnobValue,
    Parallelism,
    TrainerSettings,
    Training,
    TuneSettings,
)


class Settings(Protocol):
    """Interface of a recipe; `trainer.recipe.schema.Recipe` documents each member."""

    @property
    def cluster(self) -> Cluster: ...
    @property
    def training(self) -> Training: ...
    @property
    def parallelism(self) -> Parallelism: ...
    @property
    def burst(self) -> BurstSettings: ...
    @property
    def tune(self) -> TuneSettings: ...
    @property
    def trainer(self) -> TrainerSettings | None: ...
    @property
    def architecture(self) -> Architecture: ...
    @property
    def hardware(self) -> Hardware: ...
    @property
    def world_size(self) -> int: ...
    @property
    def data_parallel_size(self) -> int: ...
    @property
    def num_microbatches(self) -> int: ...
    @property
    def expert_tensor_parallel_size(self) -> int: ...
    @property
    def knobs(self) -> Mapping[str, KnobValue]: ...
    @property
    def memory_limit_gib(self) -> float | None: ...

    def knob(self, name: str, /) -> Any:
        """Returns a knob's value, or its default if it is not set."""
